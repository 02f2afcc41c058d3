"""Downloads from a server that drops, truncates, corrupts, lies and changes its mind."""

import bz2
import gzip
import hashlib
import io
import json
import lzma
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import tracemalloc
import zipfile
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import fedsense
from fedsense.data.card import Download
from fedsense.data.fetch import Bar, Patience, _broken, fetch
from fedsense.errors import RunFailed, UserError
from fedsense.work import stream


def zipped(data, name="data.bin"):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), data)
    return packed.getvalue()


LENGTH = 1_000_003
OLD, NEW = (zipped(stream("fetch", age).bytes(LENGTH - len(zipped(b"")))) for age in ("old", "new"))
assert len(OLD) == len(NEW) == LENGTH
ROOT = str(Path(fedsense.__file__).parent)


def sha(data):
    return hashlib.sha256(data).hexdigest()


class Site(ThreadingHTTPServer):
    """Serves ``content``. Each request takes the next of ``moods``: a dict of what is wrong with the answer."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.etag, self.modified = OLD, '"old"', None
        self.moods, self.always = [], {}
        self.asked, self.sent = [], []  # the headers of each request, and the bytes of content given for it
        self.let_go = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/data.zip"

    def handle_error(self, request, client_address):
        """A client that hangs up is what some tests are about."""


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do_GET(self):
        site, self.close_connection = self.server, True
        mood = site.moods.pop(0) if site.moods else site.always
        site.asked.append(dict(self.headers))
        site.sent.append(0)
        self.number = len(site.sent) - 1  # whoever was told enough by the headers may have asked again meanwhile
        if "become" in mood:
            site.content, site.etag = mood["become"]
        if "status" in mood:
            return self.head(mood["status"], {"Content-Length": 0, **mood.get("headers", {})})
        content = mood.get("content", site.content)
        first, status, headers = 0, 200, {"ETag": site.etag, "Last-Modified": site.modified}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        condition = self.headers.get("If-Range")
        current = condition in (None, site.etag, site.modified) or mood.get("ignore_condition")
        if wanted and current and not mood.get("ignore_range"):
            first, status = mood.get("first", int(wanted[1])), 206
            if first >= len(content):
                return self.head(416, {"Content-Range": f"bytes */{len(content)}", "Content-Length": 0, **headers})
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
        body = content[first:]
        self.head(status, {"Content-Length": len(body), **headers, **mood.get("headers", {})})
        return self.give(body[: mood.get("give", len(body))], mood)

    def head(self, status, headers):
        self.send_response(status)
        for key, value in headers.items():
            if value is not None:
                self.send_header(key, str(value))
        self.send_header("Connection", "close")
        self.end_headers()

    def give(self, body, mood):
        if mood.get("chunked"):
            body = b"".join(b"%x\r\n%s\r\n" % (len(body), body) for body in (body, b""))
        self.server.sent[self.number] += len(body)  # first: the test goes on as soon as the last byte has come
        self.wfile.write(body)
        self.wfile.flush()
        if mood.get("hold"):
            self.server.let_go.wait(20)
        if mood.get("reset"):  # RST instead of FIN
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()


class Ear:
    """A listener that keeps what it hears."""

    def __init__(self):
        self.events, self.notes = [], []

    def started(self, name, total):
        self.events.append(("started", name, total))

    def advanced(self, count):
        self.events.append(("advanced", count))

    def finished(self):
        self.events.append(("finished",))

    def told(self, message):
        self.notes.append(message)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "*")
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.let_go.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def waits():
    return []


@pytest.fixture
def get(site, tmp_path, waits):
    """Fetch data.zip of the site, without really waiting."""

    def get(progress=None, url=None, tries=6, timeout=5.0, name="data.zip", **known):
        download = Download(url or site.url, name, **known)
        patience = Patience(tries=tries, timeout=timeout, sleep=waits.append)
        (path,) = fetch([download], tmp_path / "d", progress, patience)
        return path.read_bytes()

    return get


def names(tmp_path):
    return sorted(path.name for path in (tmp_path / "d").iterdir())


def part(tmp_path, data, **note):
    """What an earlier run left."""
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "data.zip.part").write_bytes(data)
    if note:
        (tmp_path / "d" / "data.zip.part.json").write_text(json.dumps(note))


def message(caught):
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_file_without_a_known_sum_is_fetched_once_and_its_sum_kept(site, get, tmp_path):
    ear = Ear()
    assert get(ear) == OLD
    assert names(tmp_path) == ["data.zip", "data.zip.sha256"]
    assert (tmp_path / "d/data.zip.sha256").read_text() == f"{sha(OLD)}  data.zip\n"
    assert sha(OLD) in ear.notes[0]
    assert ear.events[0] == ("started", "data.zip", len(OLD))
    assert ear.events[-1] == ("finished",)
    assert sum(event[1] for event in ear.events if event[0] == "advanced") == len(OLD)
    assert get(ear) == OLD
    assert len(site.asked) == 1


def test_the_kept_sum_is_one_that_sha256sum_understands(get, tmp_path):
    get()
    if shutil.which("sha256sum"):
        subprocess.run(["sha256sum", "--check", "--strict", "data.zip.sha256"], cwd=tmp_path / "d", check=True)


def test_a_file_with_known_sums_is_fetched_once(site, get, tmp_path):
    known = {"sha256": sha(OLD).upper(), "md5": hashlib.md5(OLD).hexdigest(), "bytes": len(OLD)}
    assert get(**known) == OLD == get(**known)
    assert names(tmp_path) == ["data.zip"]
    assert len(site.asked) == 1


def test_several_files_come_in_order(site, tmp_path):
    downloads = [Download(site.url, name) for name in ("b", "a")]
    assert [path.name for path in fetch(downloads, tmp_path / "deep" / "er")] == ["b", "a"]


def test_a_dropped_connection_goes_on_where_it_broke_and_no_byte_comes_twice(site, get, waits):
    site.moods = [{"give": 300_000}, {"give": 1}, {"give": 500_000}]
    ear = Ear()
    assert get(ear) == OLD
    assert site.sent == [300_000, 1, 500_000, len(OLD) - 800_001]
    assert [asked.get("Range") for asked in site.asked] == [None, "bytes=300000-", "bytes=300001-", "bytes=800001-"]
    assert [asked.get("If-Range") for asked in site.asked] == [None, '"old"', '"old"', '"old"']
    assert waits == [1.0, 1.0, 1.0]  # each try brought something
    assert [event for event in ear.events if event[0] == "started"] == [("started", "data.zip", len(OLD))]
    assert sum(event[1] for event in ear.events if event[0] == "advanced") == len(OLD)


def test_a_reset_connection_goes_on(site, get):
    site.moods = [{"give": 400_000, "reset": True}, {"give": 0, "reset": True}, {"give": 200_000, "reset": True}]
    assert get(sha256=sha(OLD)) == OLD


def test_many_drops_are_no_reason_to_give_up_as_long_as_something_comes(site, get):
    site.moods = [{"give": 50_000}] * 19
    assert get(tries=2) == OLD


def test_a_chunked_answer_that_breaks_off_goes_on(site, get):
    site.moods = [{"give": 0, "headers": {"Content-Length": None, "Transfer-Encoding": "chunked"}}] * 2
    site.moods.append({"chunked": True, "headers": {"Content-Length": None, "Transfer-Encoding": "chunked"}})
    assert get() == OLD


def test_an_earlier_run_is_continued(site, get, tmp_path):
    part(tmp_path, OLD[:600_000], url=site.url, etag='"old"', total=len(OLD))
    ear = Ear()
    assert get(ear) == OLD
    assert site.sent == [len(OLD) - 600_000]
    assert ear.events[:2] == [("started", "data.zip", len(OLD)), ("advanced", 600_000)]


def test_a_part_that_is_whole_already_needs_no_request(site, get, tmp_path):
    part(tmp_path, OLD, url=site.url, etag='"old"', total=len(OLD))
    ear = Ear()
    assert get(ear) == OLD
    assert site.asked == []
    assert ear.events == [("started", "data.zip", len(OLD)), ("advanced", len(OLD)), ("finished",)]


def test_a_part_that_is_whole_though_nobody_knew_is_found_so_by_416(site, get, tmp_path):
    part(tmp_path, OLD, url=site.url, etag='"old"')
    assert get() == OLD
    assert site.sent == [0]


@pytest.mark.parametrize(
    "note",
    [{}, {"url": "http://elsewhere/data.zip", "etag": '"old"'}, {"url": True, "wrong": 1}, {"etag": '"old"'}],
    ids=["none", "elsewhere", "nonsense", "no address"],
)
def test_a_part_of_nobody_knows_what_is_not_continued(site, get, tmp_path, note):
    part(tmp_path, NEW[:600_000], **note)
    assert get() == OLD
    assert site.sent == [len(OLD)]


def test_a_part_longer_than_the_file_is_not_continued(site, get, tmp_path):
    part(tmp_path, NEW + b"more", url=site.url, etag='"old"')
    assert get() == OLD
    assert site.sent == [0, len(OLD)]


def test_a_server_that_knows_no_ranges_sends_all_again(site, get):
    site.moods = [{"give": 300_000}, {"ignore_range": True}]
    ear = Ear()
    assert get(ear) == OLD
    assert site.sent == [300_000, len(OLD)]
    assert [event[0] for event in ear.events].count("started") == 2


def test_a_server_that_knows_no_ranges_and_always_breaks_off_is_given_up(site, get, waits):
    site.always = {"give": 300_000, "ignore_range": True}
    with pytest.raises(RunFailed) as caught:
        get(tries=4)
    assert "gave up" in message(caught)
    assert len(site.asked) <= 6


def test_a_file_that_changes_on_the_server_is_not_glued_together(site, get):
    site.moods = [{"give": 300_000}, {"become": (NEW, '"new"')}]
    assert get() == NEW
    assert site.sent == [300_000, len(NEW)]


def test_nor_when_the_server_does_not_understand_the_condition(site, get):
    site.moods = [{"give": 300_000}, {"become": (NEW, '"new"'), "ignore_condition": True}]
    assert get() == NEW


def test_the_date_of_change_stands_in_for_a_weak_etag(site, get):
    site.etag, site.modified = 'W/"weak"', "Mon, 02 Feb 2015 10:00:00 GMT"
    site.moods = [{"give": 300_000}]
    assert get() == OLD
    assert site.asked[1]["If-Range"] == site.modified


def test_without_etag_and_date_only_a_checksum_allows_to_continue(site, get, tmp_path):
    site.etag = None
    site.moods = [{"give": 300_000}]
    assert get() == OLD
    assert site.sent == [300_000, len(OLD)]
    (tmp_path / "d/data.zip").unlink()
    site.sent.clear()
    site.moods = [{"give": 300_000}]
    assert get(sha256=sha(OLD)) == OLD
    assert site.sent == [300_000, len(OLD) - 300_000]


@pytest.mark.parametrize(
    "mood", [{"first": 0}, {"first": 299_999}, {"first": 300_001}, {"headers": {"Content-Range": "nonsense"}}]
)
def test_another_range_than_asked_for_is_not_taken(site, get, mood):
    site.moods = [{"give": 300_000}, mood]
    assert get() == OLD
    assert site.sent[2:] == [len(OLD)]


def test_a_wrong_checksum_is_tried_once_more_from_the_start(site, get, tmp_path):
    site.moods = [{"content": NEW}]
    ear = Ear()
    assert get(ear, sha256=sha(OLD)) == OLD
    assert site.sent == [len(OLD), len(OLD)]
    assert sha(NEW) in ear.notes[0]
    assert names(tmp_path) == ["data.zip"]


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_checksum_that_stays_wrong_is_told_with_both_sums(site, get, tmp_path, kind):
    site.always = {"content": NEW}
    right, wrong = (hashlib.new(kind, data).hexdigest() for data in (OLD, NEW))
    with pytest.raises(RunFailed) as caught:
        get(**{kind: right})
    assert right in message(caught)
    assert wrong in message(caught)
    assert len(site.asked) == 2
    assert names(tmp_path) == []


def test_a_damaged_resume_is_healed_by_the_checksum(site, get, tmp_path):
    part(tmp_path, NEW[:600_000], url=site.url, etag='"old"', total=len(OLD))
    assert get(md5=hashlib.md5(OLD).hexdigest()) == OLD
    assert site.sent == [len(OLD) - 600_000, len(OLD)]


def test_a_file_that_was_altered_is_fetched_again(site, get, tmp_path):
    get()
    (tmp_path / "d/data.zip").write_bytes(OLD[:-1])
    ear = Ear()
    assert get(ear) == OLD
    assert "fetching it again" in ear.notes[0]


def test_another_file_than_the_first_time_is_refused_and_the_old_one_stays(site, get, tmp_path):
    get()
    (tmp_path / "d/data.zip").write_bytes(b"altered")
    site.content, site.etag = NEW, '"new"'
    with pytest.raises(RunFailed, match=f"{sha(NEW)}.*{sha(OLD)}"):
        get()
    assert (tmp_path / "d/data.zip").read_bytes() == b"altered"


def test_a_file_put_there_by_hand_is_taken(site, get, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/data.zip").write_bytes(OLD)
    assert get() == OLD
    assert site.asked == []
    assert names(tmp_path) == ["data.zip", "data.zip.sha256"]


def test_a_length_too_long_is_never_believed(site, get, tmp_path):
    site.always = {"headers": {"Content-Length": len(OLD) + 5, "Content-Range": None}, "ignore_range": True}
    with pytest.raises(RunFailed, match="gave up"):
        get(tries=3)
    assert "data.zip" not in names(tmp_path)


def test_a_length_too_short_is_found_by_the_checksum_or_the_size(site, get):
    site.always = {"headers": {"Content-Length": 1000}}
    with pytest.raises(RunFailed) as caught:
        get(sha256=sha(OLD))
    assert sha(OLD[:1000]) in message(caught)
    with pytest.raises(RunFailed, match="has 1000 bytes, and 1000003 were expected"):
        get(bytes=len(OLD))


def test_no_more_is_taken_than_expected(site, get, tmp_path):
    site.always = {"chunked": True, "headers": {"Content-Length": None, "Transfer-Encoding": "chunked"}}
    with pytest.raises(RunFailed, match="more than the 5000 bytes"):
        get(bytes=5000)
    assert (tmp_path / "d/data.zip.part").stat().st_size == 0
    assert get(bytes=len(OLD)) == OLD


def test_an_old_server_that_names_no_length_is_held_to_the_known_one(site, get, waits):
    site.moods = [{"give": 300_000, "headers": {"Content-Length": None}}]
    assert get(bytes=len(OLD)) == OLD
    assert site.sent == [300_000, len(OLD) - 300_000]
    assert waits == [1.0]


NO_LENGTH = {"Content-Length": None}
NESTED = zipped(zipped(b"inner" * 50) + stream("fetch", "rest").bytes(1000))
ROWS = stream("fetch", "rows").bytes(50_000)
ARCHIVES = {
    "data.zip": NESTED,
    "data.ZIP": OLD,
    "data.gz": gzip.compress(ROWS),
    "data.tgz": gzip.compress(ROWS) + gzip.compress(ROWS),
    "data.tar.gz": gzip.compress(ROWS),
    "data.tar.xz": lzma.compress(ROWS),
    "data.tar.bz2": bz2.compress(ROWS),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_of_unknown_length_that_comes_short_is_fetched_again(site, get, tmp_path, name):
    site.content = whole = ARCHIVES[name]
    site.always = {"headers": NO_LENGTH}
    site.moods = [{"headers": NO_LENGTH, "give": len(whole) - 9}]
    ear = Ear()
    assert get(ear, name=name) == whole
    assert "once more from the start" in ear.notes[0]
    assert site.sent == [len(whole) - 9, len(whole)]
    assert names(tmp_path) == [name, f"{name}.sha256"]
    assert sha(whole) in (tmp_path / f"d/{name}.sha256").read_text()


@pytest.mark.parametrize("name", ARCHIVES)
@pytest.mark.parametrize("share", [0, 0.001, 0.4, 0.99])
def test_an_archive_that_always_comes_short_is_not_put_in_place(site, get, tmp_path, name, share):
    site.content = ARCHIVES[name]
    site.always = {"headers": NO_LENGTH, "give": int(share * len(site.content))}
    with pytest.raises(RunFailed) as caught:
        get(name=name, tries=2)
    assert re.search(r"(no whole \.zip archive.*|ends too early.*|is empty), twice", message(caught), re.I)
    assert str(tmp_path / "d" / name) in message(caught)
    assert names(tmp_path) == []


def test_the_directory_of_a_zip_within_does_not_stand_for_that_of_the_whole(site, get):
    """A zip in a zip, cut after the inner one: from its end it looks like a zip with something before it."""
    cut = NESTED.index(b"PK\5\6") + 22 + 500
    assert zipfile.is_zipfile(io.BytesIO(NESTED[:cut]))
    site.content = NESTED
    site.always = {"headers": NO_LENGTH, "give": cut}
    with pytest.raises(RunFailed, match="ends too early"):
        get()


def test_no_cut_of_a_zip_is_taken_for_a_whole_one(tmp_path):
    path = tmp_path / "data.zip"
    for length in range(1, len(NESTED)):
        path.write_bytes(NESTED[:length])
        assert _broken(Download("", "data.zip"), path), length
    path.write_bytes(NESTED)
    assert not _broken(Download("", "data.zip"), path)


@pytest.mark.parametrize("name", ["data.gz", "data.tar.bz2", "data.tar.xz"])
def test_damage_within_is_found(site, get, name):
    whole = ARCHIVES[name]
    site.content = whole[:9000] + bytes(9) + whole[9009:]
    with pytest.raises(RunFailed, match=f"no whole .{name.rpartition('.')[2]} archive.*twice"):
        get(name=name)


def test_what_is_no_archive_or_has_a_checksum_need_not_open(site, get):
    site.content = b"1,2,3\n"
    site.moods = [{"headers": NO_LENGTH, "give": 0}]  # but it may not be empty
    assert get(name="data.csv") == b"1,2,3\n"
    assert get(sha256=sha(b"1,2,3\n")) == b"1,2,3\n"


def test_large_archives_are_read_in_blocks(site, get, tmp_path):
    site.content = gzip.compress(bytes(200 << 20), 1)
    tracemalloc.start()
    try:
        get(name="data.gz")
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


def test_a_short_file_and_its_sum_kept_by_an_earlier_version_are_replaced(site, get, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/data.zip").write_bytes(OLD[:-9])
    (tmp_path / "d/data.zip.sha256").write_text(f"{sha(OLD[:-9])}  data.zip\n")
    ear = Ear()
    assert get(ear) == OLD
    assert "no whole .zip archive" in ear.notes[0]
    assert sha(OLD) in (tmp_path / "d/data.zip.sha256").read_text()


@pytest.mark.parametrize("start", [b"<!DOCTYPE html>", b"\n  <html lang=en>", b"\xef\xbb\xbf<!doctype HTML>"])
@pytest.mark.parametrize("name", ["data.zip", "data.tar.gz", "data.csv"])
def test_a_web_page_that_does_not_say_so_is_told_and_not_kept(site, get, tmp_path, start, name):
    site.content = start + b"<title>I agree</title>"
    with pytest.raises(RunFailed) as caught:
        get(name=name)
    assert "shows a web page" in message(caught)
    assert "open it in a browser" in message(caught)
    assert str(tmp_path / "d" / name) in message(caught)
    assert len(site.asked) == 1
    assert names(tmp_path) == []


def test_a_web_page_in_place_of_a_file_with_a_checksum_is_told_as_one(site, get):
    site.content = b"<html></html>"
    with pytest.raises(RunFailed, match="web page"):
        get(sha256=sha(OLD))


def test_a_page_that_was_asked_for_is_a_file(site, get):
    site.content = b"<html></html>"
    assert get(name="data.html") == b"<html></html>"


def test_an_empty_file_is_none(site, get, tmp_path):
    site.content = b""
    with pytest.raises(RunFailed, match="has 0 bytes"):
        get()
    assert names(tmp_path) == []


def test_no_content_is_no_file(site, get, tmp_path):
    site.always = {"status": 204}
    with pytest.raises(RunFailed, match="gave up"):
        get(tries=2)
    assert names(tmp_path) == []


def test_a_proxy_that_does_not_let_through_is_named(site, get, waits, monkeypatch):
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.setenv("no_proxy", "")
    monkeypatch.setenv("https_proxy", site.url)
    with pytest.raises(RunFailed) as caught:
        get(url="https://example.org/x.zip")  # the site knows no CONNECT and answers 501
    assert "the proxy does not let example.org through" in message(caught)
    assert waits == []


def test_a_web_page_is_no_archive(site, get):
    site.always = {"headers": {"Content-Type": "text/html; charset=utf-8"}}
    with pytest.raises(RunFailed, match="web page"):
        get()
    assert get(sha256=sha(OLD)) == OLD


@pytest.mark.parametrize(
    ("status", "word"), [(404, "moved"), (410, "moved"), (403, "form"), (401, "log in"), (400, "refused")]
)
def test_a_refusal_is_final_and_says_what_to_do(site, get, tmp_path, status, word):
    site.always = {"status": status}
    with pytest.raises(RunFailed) as caught:
        get()
    assert word in message(caught)
    assert str(tmp_path / "d/data.zip") in message(caught)
    assert len(site.asked) == 1


def test_a_busy_server_is_left_alone_as_long_as_it_asks(site, get, waits):
    later = formatdate(time.time() + 60, usegmt=True)
    busy = [{"Retry-After": "7"}, {"Retry-After": later}, {}, {"Retry-After": "soon"}]
    site.moods = [{"status": 503, "headers": headers} for headers in busy]
    assert get() == OLD
    assert waits == [7.0, pytest.approx(60, abs=3), 4.0, 8.0]


def test_a_server_that_asks_for_too_much_is_not_waited_for(site, get, waits):
    site.always = {"status": 429, "headers": {"Retry-After": "86400"}}
    with pytest.raises(RunFailed, match="86400 s"):
        get()
    assert waits == []


def test_a_broken_server_is_given_up_after_doubling_waits(site, get, waits):
    site.always = {"status": 500}
    with pytest.raises(RunFailed) as caught:
        get(tries=5)
    assert "500" in message(caught)
    assert waits == [1.0, 2.0, 4.0, 8.0]
    assert len(site.asked) == 5


def test_giving_up_keeps_what_has_come(site, get):
    site.moods = [{"give": 300_000}]
    site.always = {"status": 502}
    with pytest.raises(RunFailed, match="300 kB are kept"):
        get()
    site.always = {}
    assert get() == OLD
    assert site.sent[-1] == len(OLD) - 300_000


def test_a_silent_server_is_asked_again(site, get):
    site.moods = [{"give": 300_000, "hold": True}]
    assert get(timeout=0.2) == OLD


def test_redirects_are_followed_to_http_only(site, get):
    site.moods = [{"status": 302, "headers": {"Location": "/else"}}]
    assert get() == OLD


@pytest.mark.parametrize("place", ["file:///etc/hostname", "ftp://127.0.0.1/x", "data:,x", "/data.zip"])
def test_redirects_elsewhere_or_in_circles_are_refused(site, get, tmp_path, place):
    site.always = {"status": 302, "headers": {"Location": place}}
    with pytest.raises(RunFailed, match="circles"):
        get()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/hostname",
        "ftp://x/y",
        "data.zip",
        "http://x/a b",
        "http://x/a\nb",
        "http:///x",
        "http://x:y/",
        "http://ä/",
    ],
)
def test_only_http_addresses_are_taken(get, url):
    with pytest.raises(UserError) as caught:
        get(url=url)
    assert "expected an address" in message(caught)


@pytest.mark.parametrize("name", ["", "..", "a/b", "/etc/x"])
def test_only_plain_names_are_taken(tmp_path, name):
    with pytest.raises(UserError, match="no name"):
        fetch([Download("http://x/y", name)], tmp_path)


def test_nobody_at_the_address(get):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/x"
    with pytest.raises(RunFailed) as caught:
        get(url=url)
    assert "refuses the connection" in message(caught)


def test_no_such_host(get, waits, monkeypatch):
    def nowhere(*args, **kwargs):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nowhere)
    with pytest.raises(RunFailed) as caught:
        get(url="http://nowhere.invalid/x")
    assert "cannot find nowhere.invalid" in message(caught)
    assert waits == []


def test_a_line_that_goes_down_on_the_way_is_waited_for(site, get, waits, monkeypatch):
    real, site.moods = socket.getaddrinfo, [{"give": 300_000}]

    def down_twice(*args, **kwargs):
        if len(site.asked) == 1 and len(waits) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(*args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", down_twice)
    assert get() == OLD
    assert waits == [1.0, 1.0, 2.0]


def test_a_folder_that_cannot_be(site, tmp_path):
    (tmp_path / "d").write_text("a file in the way")
    with pytest.raises(UserError) as caught:
        fetch([Download(site.url, "data.zip")], tmp_path / "d")
    assert "name a folder" in message(caught)


def test_a_folder_in_the_place_of_the_file(site, get, tmp_path):
    (tmp_path / "d/data.zip").mkdir(parents=True)
    with pytest.raises(UserError, match="move it away"):
        get()
    assert site.asked == []


def test_too_little_room_is_told_before_the_first_byte(get, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10**9, 10**9, 5000))
    with pytest.raises(RunFailed) as caught:
        get()
    assert "room for 5 kB, and data.zip needs 1 MB more" in message(caught)
    assert names(tmp_path) == []


BARE = """
import resource, signal, sys, types
for name, folder in (("fedsense", sys.argv[1]), ("fedsense.data", sys.argv[1] + "/data")):
    sys.modules[name] = types.ModuleType(name)  # without what the packages import, torch above all
    sys.modules[name].__path__ = [folder]
"""
CHILD = """
from pathlib import Path
from fedsense.data.fetch import Bar, Download, fetch
from fedsense.errors import FedsenseError
signal.signal(signal.SIGINT, signal.default_int_handler)
url, folder, room = sys.argv[2:]
if int(room):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), int(room)))
try:
    fetch([Download(url, "data.zip")], Path(folder), Bar())
except FedsenseError as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


def child(site, tmp_path, room=0):
    command = [sys.executable, "-W", "error", "-c", BARE + CHILD, ROOT, site.url, str(tmp_path / "d"), str(room)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_full_disk_is_told_in_one_line_and_what_came_is_kept(site, get, tmp_path):
    process = child(site, tmp_path, room=400_000)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("RunFailed: no room is left")
    assert "Traceback" not in said
    held = (tmp_path / "d/data.zip.part").stat().st_size
    assert 0 < held <= 400_000
    assert get() == OLD
    assert site.sent[-1] == len(OLD) - held


def test_ctrl_c_leaves_a_part_to_go_on_from(site, get, tmp_path):
    site.moods = [{"give": 700_000, "hold": True}]
    place = tmp_path / "d/data.zip.part"
    process = child(site, tmp_path)
    until(lambda: site.sent == [700_000] and place.exists() and place.stat().st_size > 0)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    site.let_go.set()
    held = place.stat().st_size
    assert process.returncode != 0
    assert 0 < held <= 700_000
    assert OLD.startswith(place.read_bytes())
    assert get() == OLD
    assert site.sent[1:] == [len(OLD) - held]
    assert names(tmp_path) == ["data.zip", "data.zip.sha256"]


def test_of_two_processes_one_fetches_and_the_other_waits(site, tmp_path):
    site.moods = [{"give": 500_000, "hold": True}]
    first = child(site, tmp_path)
    until(lambda: site.sent == [500_000])
    second = child(site, tmp_path)
    said = second.stderr.readline()
    assert said == "another process is fetching data.zip; waiting for it\n"
    site.let_go.set()
    for process in (first, second):
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert sum(site.sent) == len(OLD)
    assert (tmp_path / "d/data.zip").read_bytes() == OLD
    assert names(tmp_path) == ["data.zip", "data.zip.sha256"]


def test_threads_at_once_do_not_disturb_each_other(site, get, tmp_path):
    site.moods = [{"give": 100_000}] * 3
    results = []
    threads = [threading.Thread(target=lambda: results.append(get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [OLD] * 4
    assert sum(site.sent) == len(OLD)
    assert names(tmp_path) == ["data.zip", "data.zip.sha256"]


def test_a_lock_left_by_a_killed_process_holds_nobody_up(get, tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d/data.zip.lock").write_text("")
    assert get() == OLD
    assert names(tmp_path) == ["data.zip", "data.zip.sha256"]


def test_away_from_a_terminal_a_line_says_what_begins_and_what_is_there(site, get):
    site.moods = [{"give": 300_000}, {"ignore_range": True}]
    paper = io.StringIO()
    with Bar(paper) as bar:
        get(bar, sha256=sha(OLD))
    assert re.sub(r"in \d+ s", "in 0 s", paper.getvalue()).splitlines() == [
        "fetching data.zip (1 MB)",
        "fetching data.zip (1 MB), from the start",
        "data.zip is there: 1 MB in 0 s",
    ]


def test_on_a_terminal_a_bar_shows_speed_and_size(site, get, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    site.moods = [{"content": NEW}, {"give": 300_000}]
    screen = Terminal()
    with Bar(screen) as bar:
        get(bar, sha256=sha(OLD))
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).rstrip().splitlines()[-1]
    assert last.startswith("data.zip")
    assert "1.0/1.0 MB" in last
    assert "once more from the start" in screen.getvalue()


def test_rich_is_loaded_for_the_bar_only():
    code = BARE + "import fedsense.data.fetch; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, ROOT], check=False).returncode == 0
