"""Files in folders and archives: the same from all of them, and nothing that is damaged, hostile or too large."""

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile

import pytest

from fedsense.data import files as module
from fedsense.data.files import File, Files, ends_as, find_root, only_known
from fedsense.errors import UserError

CONTENT = {
    "Data/a 1.txt": b"first\n" * 50,
    "Data/sub/bÄ.TXT": b"second\n",
    "Data/sub/empty.txt": b"",
    "Data/other.md": b"not wanted",
}
WANTED = ("*.txt",)


def test_what_is_done_ahead_begins_before_the_archive_is_read(tmp_path, monkeypatch):
    """The archive's last file only comes when the first has been dealt with."""
    (tmp_path / "d.tar").write_bytes(tarred({"a.txt": b"1", "b.txt": b"2", "c.txt": b"no number"}))
    dealt_with, walk = threading.Event(), module._walk

    def slowly(root, wanted):
        for found in walk(root, wanted):
            if found.base == "b.txt":
                assert dealt_with.wait(20)
            yield found

    def ahead(found):
        dealt_with.set()
        if not found.read().isdigit():
            raise found.wrong("no number")
        return int(found.read())

    monkeypatch.setattr(module, "_walk", slowly)
    files = Files(tmp_path / "d.tar", ("*.txt",), ahead=ahead)
    assert [files.made(found) for found in files.files[:2]] == [1, 2]
    with pytest.raises(UserError, match=r"c\.txt: no number"):  # told when it is asked for
        files.made(files.files[2])


def zipped(content=CONTENT, compression=zipfile.ZIP_DEFLATED):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", compression) as box:
        for name, text in content.items():
            box.writestr(name, text)
    return data.getvalue()


def tarred(content=CONTENT, mode="w", members=()):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode=mode) as box:
        for name, text in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            box.addfile(member, io.BytesIO(text))
        for member in members:
            box.addfile(member)
    return data.getvalue()


def unpacked(folder, content=CONTENT):
    for name, text in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    return folder


def found(root, wanted=WANTED):
    return {file.name: file.read() for file in Files(root, wanted).files}


def saved(path, data):
    path.write_bytes(data)
    return path


def message_of(root, wanted=WANTED):
    with pytest.raises(UserError) as error:
        found(root, wanted)
    text = str(error.value)
    assert "\n" not in text
    return text


EXPECTED = {name: text for name, text in CONTENT.items() if name.lower().endswith(".txt")}


def test_the_same_files_from_a_folder_and_every_kind_of_archive(tmp_path):
    assert found(unpacked(tmp_path / "folder")) == EXPECTED
    kinds = {".tar": "w", ".tar.gz": "w:gz", ".tgz": "w:gz", ".tar.xz": "w:xz", ".txz": "w:xz", ".tar.bz2": "w:bz2"}
    for ending, mode in kinds.items():
        assert found(saved(tmp_path / f"a{ending}", tarred(mode=mode))) == EXPECTED, ending
    assert found(saved(tmp_path / "A.ZIP", zipped())) == EXPECTED
    assert found(saved(tmp_path / "stored.zip", zipped(compression=zipfile.ZIP_STORED))) == EXPECTED


@pytest.mark.parametrize("inner", ["in.zip", "in.tar.xz"])
@pytest.mark.parametrize("outer", ["out.zip", "out.tar.gz"])
def test_archives_in_archives(tmp_path, inner, outer):
    data = zipped() if inner.endswith("zip") else tarred(mode="w:xz")
    content = {f"deep/{inner}": data, "plain.txt": b"here"}
    path = saved(tmp_path / outer, zipped(content) if outer.endswith("zip") else tarred(content, "w:gz"))
    expected = {f"deep/{inner}/{name}": text for name, text in EXPECTED.items()} | {"plain.txt": b"here"}
    assert found(path) == expected
    folder = tmp_path / "folder"
    folder.mkdir()
    path.rename(folder / outer)
    assert found(folder) == {f"{outer}/{name}": text for name, text in expected.items()}


def test_places_name_the_archive_and_the_file_in_it(tmp_path):
    path = saved(tmp_path / "out.zip", zipped({"in.tar": tarred()}))
    file = Files(path, WANTED).one("bä.txt")
    assert file.name == "in.tar/Data/sub/bÄ.TXT"
    assert file.place == f"{path}/in.tar/Data/sub/bÄ.TXT"
    assert (file.base, file.folder) == ("bÄ.TXT", "sub")


def test_archives_nested_too_deep_are_refused(tmp_path):
    data = zipped({"x.txt": b""})
    for _ in range(module.NESTING):
        data = zipped({"in.zip": data})
    assert "archives are nested deeper than 3" in message_of(saved(tmp_path / "a.zip", data))


def test_wanted_archives_are_not_opened(tmp_path):
    assert list(found(saved(tmp_path / "a.zip", b"no zip"), ("*.zip",))) == ["a.zip"]


@pytest.mark.parametrize(
    "name", ["../x.txt", "a/../../x.txt", "/etc/x.txt", "..\\x.txt", "C:\\x.txt", "c:x.txt", "\\\\host\\share\\x.txt"]
)
def test_names_that_climb_out_are_not_trusted(tmp_path, name):
    for path, data in (("a.zip", zipped({name: b""})), ("a.tar", tarred({name: b""}))):
        message = message_of(saved(tmp_path / path, data))
        assert message == f"{tmp_path / path} holds '{name}', which climbs out of its folder; it is not trusted"


def test_a_name_that_climbs_out_is_not_trusted_even_if_it_is_not_wanted(tmp_path):
    assert "climbs out" in message_of(saved(tmp_path / "a.zip", zipped(CONTENT | {"../.bashrc": b"evil"})))


def test_backslashes_are_folders(tmp_path):
    assert list(found(saved(tmp_path / "a.zip", zipped({"Data\\sub\\x.txt": b""})), ("sub/x.txt",))) == [
        "Data/sub/x.txt"
    ]


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, kind):
    member = tarfile.TarInfo("Data/link.txt")
    member.type, member.linkname = kind, "/etc/passwd"
    path = saved(tmp_path / "a.tar", tarred(members=[member]))
    assert message_of(path) == f"{path}: 'Data/link.txt' is a link or a device, not a file; it is not trusted"
    member.name = "Data/readme"  # nobody asks for it
    assert found(saved(path, tarred(members=[member]))) == EXPECTED


def test_a_link_in_a_zip_is_refused(tmp_path):
    info = zipfile.ZipInfo("Data/link.txt")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    data = io.BytesIO(zipped())
    with zipfile.ZipFile(data, "a") as box:
        box.writestr(info, "/etc/passwd")
    assert "'Data/link.txt' is a link" in message_of(saved(tmp_path / "a.zip", data.getvalue()))


def test_what_a_mac_adds_is_left_out(tmp_path):
    added = {"__MACOSX/Data/x.txt": b"no", "Data/._a 1.txt": b"no", ".hidden/x.txt": b"no", "._a.zip": b"no zip"}
    assert found(unpacked(tmp_path / "folder", CONTENT | added)) == EXPECTED
    assert found(saved(tmp_path / "a.zip", zipped(CONTENT | added))) == EXPECTED
    assert found(saved(tmp_path / "a.tar", tarred(CONTENT | added))) == EXPECTED
    dotted = {f"./{name}": text for name, text in CONTENT.items()}
    assert found(saved(tmp_path / "b.tar", tarred(dotted))) == EXPECTED


def encrypted():
    data = bytearray(zipped({"Data/a.txt": b"secret"}))
    data[6] |= 1  # the flag in the file's own header
    data[data.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    return bytes(data)


def test_a_password_is_told(tmp_path):
    path = saved(tmp_path / "a.zip", encrypted())
    assert message_of(path) == f"{path}: 'Data/a.txt' needs a password; unpack it and give the folder"


def test_an_unknown_compression_is_told(tmp_path):
    data = bytearray(zipped({"Data/a.txt": b"x"}))
    data[8] = 9  # "Deflate64"
    data[data.index(b"PK\x01\x02") + 10] = 9
    assert "Data/a.txt cannot be read: That compression method is not supported" in message_of(
        saved(tmp_path / "a.zip", bytes(data))
    )


def noise(count, seed=0):
    return random.Random(seed).randbytes(count)


MANY = {f"Data/{i}.txt": noise(700, i) for i in range(8)}


@pytest.mark.parametrize("mode", ["zip", "w", "w:gz", "w:xz", "w:bz2"])
def test_an_archive_cut_short_anywhere_is_told_and_nothing_is_half_loaded(tmp_path, mode):
    whole = zipped(MANY) if mode == "zip" else tarred(MANY, mode)
    path = tmp_path / ("a.zip" if mode == "zip" else "a.tar")
    assert len(found(saved(path, whole))) == 8
    # a plain tar ends in empty blocks, of which all but one may be missing
    end = len(whole) if mode != "w" else len(whole.rstrip(b"\0")) + 1
    for length in {0, 1, 100, 512, 1536, 2048, end // 3, end // 2, end * 3 // 4, end - 9, end - 1}:
        message = message_of(saved(path, whole[:length]))
        assert message.startswith(f"{path} is damaged or cut short ("), (length, message)


@pytest.mark.parametrize("mode", ["zip", "w:gz", "w:xz", "w:bz2"])
def test_a_changed_byte_is_told_or_changes_nothing(tmp_path, mode):
    whole = zipped(MANY) if mode == "zip" else tarred(MANY, mode)
    path = tmp_path / ("a.zip" if mode == "zip" else "a.tar")
    dice = random.Random(1)
    told = []
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(dice.randint(1, 3)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        saved(path, bytes(data))
        try:
            contents = found(path)
        except UserError as error:
            told.append(str(error))
        else:  # a name or a time may have changed, but no content
            assert set(contents.values()) <= set(MANY.values())
    assert len(told) > 200
    assert all(str(path) in message and "\n" not in message for message in told)


def test_a_damaged_header_does_not_end_a_tar(tmp_path):
    data = bytearray(tarred(MANY))
    data[3 * 1536 + 150] ^= 1  # the checksum of the fourth header
    assert "is damaged or cut short (bad checksum)" in message_of(saved(tmp_path / "a.tar", bytes(data)))


def test_archives_without_files(tmp_path):
    for name, data in (("a.zip", zipped({})), ("a.tar", tarred({}))):
        path = saved(tmp_path / name, data)
        assert message_of(path) == f"{path} holds no file like '*.txt'"


def test_a_wrong_folder_says_what_it_holds_and_what_was_expected(tmp_path):
    unpacked(tmp_path, {"readme.md": b"", "x/y.csv": b""})
    with pytest.raises(UserError) as error:
        _ = Files(tmp_path, ("RawData/*.txt",), "RawData/acc.txt").files
    assert str(error.value) == (
        f"{tmp_path} holds no file like 'RawData/*.txt' (it holds readme.md, x); expected: RawData/acc.txt"
    )


def test_one_all_some(tmp_path):
    files = Files(unpacked(tmp_path), WANTED, "three files")
    assert [file.name for file in files.all("sub/*.txt")] == ["Data/sub/bÄ.TXT", "Data/sub/empty.txt"]
    assert files.some("none/*.txt") == []
    with pytest.raises(UserError, match=r"holds no file 'none/\*\.txt'; expected: three files"):
        files.one("none/*.txt")
    with pytest.raises(UserError, match=r"3 times \(Data/a 1.txt, Data/sub/bÄ.TXT, …\); keep one"):
        files.one("*.txt")


def test_the_same_file_packed_and_unpacked_is_not_read_twice(tmp_path):
    unpacked(tmp_path, CONTENT)
    saved(tmp_path / "all.zip", zipped())
    assert message_of(tmp_path) == (
        f"{tmp_path} holds the same file twice, as all.zip/Data/a 1.txt and unpacked as Data/a 1.txt; keep one"
    )
    other = tmp_path / "other"
    unpacked(other, {f"all/{name}": text for name, text in CONTENT.items()})
    saved(other / "all.tar.gz", tarred(mode="w:gz"))
    assert "keep one" in message_of(other)


def test_archives_of_several_clients_may_hold_files_of_the_same_name(tmp_path):
    unpacked(tmp_path, {"p1/acc.zip": zipped({"acc.txt": b"1"}), "p2/acc/acc.txt": b"2", "p3/acc.txt": b"3"})
    assert found(tmp_path) == {"p1/acc.zip/acc.txt": b"1", "p2/acc/acc.txt": b"2", "p3/acc.txt": b"3"}


def test_ends_as():
    assert ends_as("a/RawData/ACC_1.TXT", "rawdata/acc_*.txt")
    assert ends_as("acc_1.txt", "acc_*.txt")
    assert not ends_as("acc_1.txt", "RawData/acc_*.txt")
    assert not ends_as("a/b/acc.txt.bak", "acc.txt")
    assert not ends_as("RawData/x/acc.txt", "RawData/*.txt")  # a star stays within one part


# ---------------------------------------------------------------- links, pipes and rights on disk


def test_folders_that_link_to_themselves_end(tmp_path):
    unpacked(tmp_path)
    (tmp_path / "Data" / "loop").symlink_to(tmp_path, target_is_directory=True)
    (tmp_path / "Data" / "sub" / "loop").symlink_to(tmp_path / "Data", target_is_directory=True)
    assert found(tmp_path) == EXPECTED


def test_links_to_folders_and_files_elsewhere_are_followed(tmp_path):
    real = unpacked(tmp_path / "real")
    root = tmp_path / "root"
    root.mkdir()
    (root / "Data").symlink_to(real / "Data", target_is_directory=True)
    assert found(root) == EXPECTED
    (root / "link.txt").symlink_to(real / "Data" / "a 1.txt")
    assert found(root)["link.txt"] == CONTENT["Data/a 1.txt"]


def test_a_link_to_nothing_is_told(tmp_path):
    unpacked(tmp_path)
    (tmp_path / "gone.txt").symlink_to(tmp_path / "nowhere")
    assert message_of(tmp_path) == f"{tmp_path / 'gone.txt'} cannot be read: No such file or directory"


def test_a_pipe_is_not_waited_for(tmp_path):
    unpacked(tmp_path)
    os.mkfifo(tmp_path / "pipe.txt")
    assert found(tmp_path) == EXPECTED


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_told(tmp_path):
    unpacked(tmp_path)
    (tmp_path / "Data" / "sub").chmod(0)
    try:
        assert message_of(tmp_path) == f"{tmp_path / 'Data' / 'sub'} cannot be read: Permission denied"
    finally:
        (tmp_path / "Data" / "sub").chmod(0o700)


def test_on_disk_is_what_is_read_or_the_archives(tmp_path):
    unpacked(tmp_path, {"a.txt": b"", "b.md": b"", "c.zip": zipped(), ".d.txt": b""})
    assert [path.name for path in Files(tmp_path, WANTED).on_disk()] == ["a.txt", "c.zip"]
    assert Files(tmp_path / "b.md", WANTED).on_disk() == [tmp_path / "b.md"]
    # a pattern with a folder does not look above the root
    root = unpacked(tmp_path / "RawData", {"acc.txt": b""})
    assert Files(root, ("RawData/*.txt",)).on_disk() == []


def test_a_single_file_is_a_root(tmp_path):
    path = saved(tmp_path / "x.txt", b"data")
    assert found(path) == {"x.txt": b"data"}
    assert message_of(saved(tmp_path / "x.csv", b"data")) == f"{tmp_path / 'x.csv'} holds no file like '*.txt'"


def test_relative_roots(tmp_path, monkeypatch):
    unpacked(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    assert found(module.Path()) == EXPECTED
    assert found(module.Path("..") / "here") == EXPECTED


# ---------------------------------------------------------------- sizes


def test_sizes_are_limited(tmp_path, monkeypatch):
    large = {"x.txt": bytes(5000)}
    roots = {
        "folder": unpacked(tmp_path / "folder", large),
        "a.zip": saved(tmp_path / "a.zip", zipped(large)),
        "a.tar.xz": saved(tmp_path / "a.tar.xz", tarred(large, "w:xz")),
        "b.zip": saved(tmp_path / "b.zip", zipped({"in.zip": zipped(large)})),
    }
    for root in roots.values():
        assert found(root)
    monkeypatch.setattr(module, "LARGEST", 4999)
    assert "x.txt is larger than 4.66e-06 GB" in message_of(roots["folder"])
    for name in ("a.zip", "a.tar.xz", "b.zip"):
        assert "'x.txt' unpacks to 4.66e-06 GB; it is not trusted" in message_of(roots[name]), name


def test_a_zip_that_lies_about_its_size_gives_no_more_than_it_says(tmp_path):
    data = bytearray(zipped({"x.txt": bytes(100_000)}))
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (10).to_bytes(4, "little")
    assert "damaged" in message_of(saved(tmp_path / "a.zip", bytes(data)))


def test_memory_for_tars_is_limited_in_all_not_each(tmp_path, monkeypatch):
    one = tarred({"x.txt": bytes(3000)}, "w:xz")
    path = saved(tmp_path / "a.zip", zipped({f"{i}.tar.xz": one for i in range(5)}))
    assert len(found(path)) == 5
    monkeypatch.setattr(module, "LARGEST_TAR", 10_000)
    assert "; unpack it and give the folder" in message_of(path)
    for name, pack in (("b.tar", tarred), ("b.zip", zipped)):
        zips = saved(tmp_path / name, pack({f"{i}.zip": zipped({"x.txt": noise(3000)}) for i in range(5)}))
        assert "; unpack it and give the folder" in message_of(zips)


def test_a_header_of_a_huge_file_in_a_tar_is_refused_before_it_is_read(tmp_path):
    member = tarfile.TarInfo("x.txt")
    member.size = 1 << 40
    header = member.tobuf(tarfile.GNU_FORMAT)
    for name in ("x.txt", "readme"):
        member.name = name
        header = member.tobuf(tarfile.GNU_FORMAT)
        assert "unpacks to 1.02e+03 GB; it is not trusted" in message_of(
            saved(tmp_path / "a.tar", header + bytes(2048))
        )


def test_a_name_without_end_in_a_tar_is_not_read(tmp_path):
    for kind in (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME):
        member = tarfile.TarInfo("name")
        member.type, member.size = kind, 1 << 33
        path = saved(tmp_path / "a.tar", member.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
        assert "damaged or cut short (a name of 8589934592 bytes)" in message_of(path)
    long = {f"{'long' * 100}/x.txt": b"1"}
    assert found(saved(tmp_path / "a.tar", tarred(long))) == long


def test_rubbish_in_the_directory_of_a_zip_is_told(tmp_path):
    """Seen in zips with random bytes changed: a name that is no text, a name without a letter."""
    data = bytearray(zipped({"Data/ü.txt": b"x"}))
    data[data.rindex(b"Data/")] = 0xFF
    assert "damaged or cut short ('utf-8' codec can't decode" in message_of(saved(tmp_path / "a.zip", bytes(data)))
    data = zipped({"a": b"x", "x.txt": b"y"})
    at = data.index(b"PK\x01\x02")
    nameless = data[: at + 46] + b"\0" + data[at + 47 :]
    assert found(saved(tmp_path / "a.zip", nameless)) == {"x.txt": b"y"}


def test_gz(tmp_path, monkeypatch):
    packed = gzip.compress(b"text" * 1000)
    path = saved(tmp_path / "x.GZ", packed)
    file = Files(path, ("*.gz",)).one("x.gz")
    assert file.unzipped() == b"text" * 1000
    assert file.read() == packed
    for data in (packed[:-1], packed[:-8], packed[:20], b"plain text", packed[:-6] + b"123456"):
        saved(path, data)
        with pytest.raises(UserError, match=r"x\.GZ is damaged or cut short"):
            file.unzipped()
    saved(path, packed)
    monkeypatch.setattr(module, "LARGEST", 3999)
    with pytest.raises(UserError, match=r"x\.GZ unpacks to more than 3.72e-06 GB; it is not trusted"):
        file.unzipped()


def test_compression_is_told_by_content_not_by_name(tmp_path):
    plain = tarred()
    for packed in (plain, gzip.compress(plain), lzma.compress(plain), bz2.compress(plain)):
        assert found(saved(tmp_path / "a.tar.gz", packed)) == EXPECTED


def test_reading_sets_aside_no_more_memory_than_needed(tmp_path):
    """``read(8 GB)`` of a small file would ask for 8 GB, which a small machine refuses."""
    path = saved(tmp_path / "x.txt", b"small")
    code = (
        "import resource, sys; from pathlib import Path; from fedsense.data.files import Files\n"
        "resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))\n"
        "print(Files(Path(sys.argv[1]), ('*.txt',)).files[0].read())"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "b'small'\n"


def test_many_threads_read_one_zip(tmp_path):
    from concurrent.futures import ThreadPoolExecutor

    content = {f"{i}.txt": noise(20_000) + bytes([i]) for i in range(40)}
    files = Files(saved(tmp_path / "a.zip", zipped(content)), WANTED).files
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for file, data in zip(files, pool.map(File.read, files), strict=True):
                assert data == content[file.name]


# ---------------------------------------------------------------- where a dataset lies


def test_find_root(tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSENSE_DATA", raising=False)
    assert find_root("hapt", str(tmp_path)) == tmp_path
    with pytest.raises(UserError, match="where is dataset 'hapt'"):
        find_root("hapt", None)
    (tmp_path / "hapt-files").mkdir()
    with pytest.raises(UserError) as error:
        find_root("hapt", tmp_path / "hapt-fils")
    assert str(error.value) == (
        f"dataset 'hapt': there is no folder or file {tmp_path / 'hapt-fils'}; did you mean 'hapt-files'?"
    )
    for wrong in ("~nobody-of-this-name/x", "/no/such/place", "x" * 5000):
        with pytest.raises(UserError, match="there is no folder or file"):
            find_root("hapt", wrong)


def test_find_root_looks_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDSENSE_DATA", str(tmp_path))
    with pytest.raises(UserError, match=r"dataset 'hapt' is not in FEDSENSE_DATA: there is no .*hapt; put it there"):
        find_root("hapt", None)
    for name in ("hapt.npz", "hapt.tar.xz", "hapt.zip", "hapt"):  # each goes before the one before
        saved(tmp_path / name, b"")
        assert find_root("hapt", None) == tmp_path / name
    assert find_root("hapt", str(tmp_path / "hapt.zip")) == tmp_path / "hapt.zip"


def test_only_known():
    file = File("labels.txt", "/data/labels.txt", io.BytesIO)
    assert only_known(file, "walk", ["walk", "run"]) == "walk"
    with pytest.raises(UserError) as error:
        only_known(file, "wlak", ["walk", "run"], "activity")
    assert str(error.value) == "/data/labels.txt: activity 'wlak' is unknown; did you mean 'walk'?"
