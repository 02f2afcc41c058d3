"""``fedsense fleet``: the same recipes on machines of their own, over Flower."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run recipes on a fleet: a server, and nodes that keep their recordings.", no_args_is_help=True)

Folder = Annotated[Path, typer.Option("--fleet", metavar="DIR", help="The folder `fleet init` made.")]
Insecure = Annotated[
    bool, typer.Option("--insecure", help="No encryption, no keys: for trying on one machine (127.0.0.1) only.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a field: --set training.lr=0.1")
]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where the fleet's keys and app go.")] = Path("fleet"),
    nodes: Annotated[int, typer.Option("--nodes", min=0, help="How many nodes: node-1, node-2, …")] = 3,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="NAME", help="A node of that name.")] = None,
    host: Annotated[
        list[str] | None, typer.Option("--host", metavar="NAME", help="Another name or address of the server.")
    ] = None,
) -> None:
    """Make a certificate authority, the server's certificate, a key pair for every node, and the Flower app."""
    need_flower()
    from fedsense.flower.setup import add_node, create

    names = list(add or []) or [f"node-{i + 1}" for i in range(nodes)]
    if (folder / "server").exists() and add:
        for name in names:
            print(f"node '{name}': copy {add_node(folder, name)} to it, and start the server anew")
        return
    hosts = create(folder, names, host or ())
    print(f"{folder}: keys of {len(names)} nodes; the server's certificate is for {', '.join(hosts)}")
    print(f"on the server:   fedsense fleet server RECIPE --fleet {folder} --nodes {len(names)}")
    print(f"on each node:    copy {folder / 'nodes' / 'NAME'} there, and then")
    print("                 fedsense fleet node --server HOST:9092 --keys NAME --data FOLDER")


@app.command()
def server(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that comes with fedsense.")],
    fleet: Folder = Path("fleet"),
    set_: Set = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of the result.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")] = False,
    nodes: Annotated[int, typer.Option("--nodes", min=1, help="Nodes to wait for before round one.")] = 1,
    wait: Annotated[float, typer.Option("--wait", help="Seconds to wait for them.")] = 600.0,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds a node has to answer.")] = 600.0,
    quorum: Annotated[float, typer.Option("--quorum", help="Share of the clients asked that must answer.")] = 0.5,
    host: Annotated[str | None, typer.Option("--host", help="Address to listen at.")] = None,
    port: Annotated[int, typer.Option("--port", help="Port to listen at.")] = 9092,
    database: Annotated[
        Path | None, typer.Option("--database", metavar="FILE", help="Keep Flower's own state in a file.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Run a recipe on the nodes that connect."""
    need_flower()
    from fedsense.errors import Interrupted
    from fedsense.experiment import choose_folder
    from fedsense.flower.running import serve
    from fedsense.recipe import load_recipe

    asked = load_recipe(recipe, set_ or [])
    folder = choose_folder(asked, out, resume)
    terms = {"nodes": nodes, "wait": wait, "deadline": deadline, "quorum": quorum}
    where = host or ("127.0.0.1" if insecure else "0.0.0.0")
    try:
        serve(
            asked,
            fleet,
            folder,
            host=where,
            port=port,
            insecure=insecure,
            resume=resume,
            database=database,
            terms=terms,
            say=_say,
        )
    except KeyboardInterrupt as stop:
        raise Interrupted(f"stopped; nothing is lost. Go on with the same command, --out {folder} --resume") from stop
    print(f"done: everything is in {folder} (fedsense compare {folder})")


@app.command()
def node(
    server: Annotated[str, typer.Option("--server", metavar="HOST:PORT", help="Where the server listens.")],
    data: Annotated[
        str, typer.Option("--data", metavar="FOLDER", help="This node's recordings; nothing: as the recipe says.")
    ] = "",
    keys: Annotated[
        Path | None, typer.Option("--keys", metavar="DIR", help="The folder `fleet init` made for this node.")
    ] = None,
    client: Annotated[
        list[str] | None, typer.Option("--client", metavar="NAME", help="Of the clients in the data, one that is here.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option("--keep", metavar="DIR", help="Where clients' states are kept between rounds.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="auto, cpu or cuda; else what the recipe says.")
    ] = None,
    insecure: Insecure = False,
) -> None:
    """Take part with this machine's recordings, which stay here."""
    need_flower()
    from fedsense.errors import Interrupted
    from fedsense.flower.running import take_part

    kept = keep or (keys / "keep" if keys else Path(".fedsense-keep"))
    try:
        take_part(
            server,
            data,
            keys=keys,
            clients=client or (),
            keep=kept,
            insecure=insecure,
            device=device,
            say=_say,
        )
    except KeyboardInterrupt as stop:
        raise Interrupted(f"stopped; what clients keep is in {kept}") from stop


@app.command()
def status(
    fleet: Folder = Path("fleet"),
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of a result.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> None:
    """Who is connected, which round it is, scores and bytes."""
    need_flower()
    from fedsense.flower.running import line_of, status_of

    found = status_of(fleet, out)
    if json_:
        print(json.dumps(found, indent=1))
        return
    print(line_of(found))
    for who, where in found.get("clients", {}).items():
        lost = found.get("failed", {}).get(who)
        print(f"  {who}: node {where}" + (f", no answer in the last round: {lost}" if lost else ""))


@app.command()
def stop(fleet: Folder = Path("fleet")) -> None:
    """End the server's run; it can go on later (fleet server … --resume)."""
    need_flower()
    from fedsense.flower.running import stop_server

    print(stop_server(fleet))


def _say(text: str) -> None:
    print(text, flush=True)


def need_flower() -> None:
    from importlib.util import find_spec

    from fedsense.errors import UserError

    if find_spec("flwr") is None:
        raise UserError("a fleet needs Flower: pip install 'fedsense[fleet]'")
    os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")  # read when Flower is imported
