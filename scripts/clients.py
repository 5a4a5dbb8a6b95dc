"""Generate the clients of the HTTP API for TypeScript and Go, from its OpenAPI document.

    scripts/clients.py install     get what generates and compiles TypeScript: the npm packages of clients/typescript
    scripts/clients.py             write clients/typescript/emq.d.ts and clients/go/emqapi/

openapi-typescript writes types for openapi-fetch; OpenAPI Generator, which needs Java, writes a package in Go that
needs the standard library alone. `make setup` installs both: what comes from npm in the versions of
clients/typescript/package-lock.json. What they write is not kept in the repository, so it cannot be older than the API.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).parents[1]
CLIENTS = ROOT / "clients"
_TYPESCRIPT = pathlib.PurePath("typescript", "node_modules")

TYPES = "npx openapi-typescript {document} --output emq.d.ts"
"""The command that writes the types, in the directory of the program that uses them."""
PACKAGE = (
    "openapi-generator-cli generate --generator-name go --input-spec {document} --output emqapi"
    " --additional-properties packageName=emqapi,disallowAdditionalPropertiesIfNotPresent=false"
    " --global-property apis,models,supportingFiles=client.go:configuration.go:response.go:utils.go,"
    "apiDocs=false,apiTests=false,modelDocs=false,modelTests=false"
)
"""The command that writes the package. Its clients keep fields that they do not know, so the API may get new ones."""


class Missing(Exception):
    """Something to generate or compile clients with is not there; the text says what would help."""


def environment() -> dict[str, str]:
    """Return what processes that generate and compile need beside the variables of this one.

    The programs beside this Python come first on the PATH.
    """
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    # What is not installed must not be downloaded, and a program must not need a C compiler.
    here = {"npm_config_offline": "true", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": "0"}
    return {**here, "PATH": path}


def check_typescript() -> None:
    """Raise `Missing` unless TypeScript can be generated, compiled and run."""
    _check("node", "install Node.js 20 or later")
    if not (CLIENTS / _TYPESCRIPT / ".bin" / "openapi-typescript").exists():
        raise Missing(
            "the npm packages of clients/typescript are missing; run .venv/bin/python scripts/clients.py install"
        )


def check_go() -> None:
    """Raise `Missing` unless Go can be generated, compiled and run."""
    _check("openapi-generator-cli", "run make setup, or pip install openapi-generator-cli")
    _check("java", "OpenAPI Generator needs Java: apt install default-jre")
    _check("go", "run make setup, or install Go 1.23 or later")


def _check(program: str, remedy: str) -> None:
    if shutil.which(program, path=environment()["PATH"]) is None:
        raise Missing(f"{program} is missing; {remedy}")


def generate(command: str, document: str, directory: pathlib.Path) -> None:
    """Run `TYPES` or `PACKAGE`.

    Args:
        document: path or URL of the OpenAPI document.
        directory: where to write.

    Raises:
        Missing: the generator failed; the text has its last lines.
    """
    shutil.rmtree(directory / "emqapi", ignore_errors=True)
    words = command.format(document=document).split()
    done = subprocess.run(
        words,
        cwd=directory,
        env={**os.environ, **environment()},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    if done.returncode:
        raise Missing(f"{words[0]} failed: {(done.stderr or done.stdout)[-2_000:]}")


def install() -> str:
    """Install the npm packages of clients/typescript; return what was done. Raises `Missing`."""
    place = CLIENTS / "typescript"
    lock, installed = place / "package-lock.json", CLIENTS / _TYPESCRIPT / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return "the npm packages are there"
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("npm is missing; install Node.js 20 or later with npm")
    done = subprocess.run([npm, "ci", "--ignore-scripts"], cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        told = [line.removeprefix("npm error").strip() for line in done.stderr.splitlines()]
        raise Missing(f"npm could not get the packages: {'; '.join([*filter(None, told)][:3]) or 'no reason given'}")
    installed.touch()
    return "the npm packages are installed"


def write() -> str:
    """Write both clients; return where. Raises `Missing`."""
    from emq_web import application

    check_typescript()
    check_go()
    with tempfile.TemporaryDirectory() as place:
        document = pathlib.Path(place, "openapi.json")
        document.write_text(json.dumps(application.document()))
        generate(TYPES, str(document), CLIENTS / "typescript")
        generate(PACKAGE, str(document), CLIENTS / "go")
    return "clients/typescript/emq.d.ts and clients/go/emqapi are written"


def main(arguments: Sequence[str]) -> int:
    if [*arguments] not in ([], ["install"]):
        sys.stderr.write("usage: scripts/clients.py [install]\n")
        return 2
    try:
        done = install() if arguments else write()
    except Missing as exc:
        so = "so the tests of TypeScript are skipped: " if arguments else ""
        sys.stdout.write(f"clients: {so}{exc}\n")
        return 1
    sys.stdout.write(f"clients: {done}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
