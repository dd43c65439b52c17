"""A container that is a whole device: the bundle, who is believed, and `edgeproof serve`.

    OUT/Dockerfile  compose.yaml  entrypoint.sh  requirements.txt  .dockerignore
    OUT/bundle/NAME-VERSION.bundle  keys/*.pub  wheels/

The image holds no secret: the device's own key is made in the volume at the first start. Every version is pinned. The
supervisor answers on the loopback interface only, so the container shares the host's network, where programs of the
same machine reach it. Nothing here needs Docker, and nothing here was built with it.

Sources: NVIDIA NGC, L4T TensorRT (tags per JetPack) and CUDA containers; ONNX Runtime, *Install* and *CUDA execution
provider* (which build needs which CUDA); Docker, *Dockerfile reference* and *Compose file reference*.
"""

from __future__ import annotations

import json
import shlex
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import InputError, UnsupportedError
from ..files import plain, write_text
from ..manifest import Manifest, in_range
from . import copied, new_folder, written
from .pins import pins

HOME = "/opt/edgeproof"
ROOT = "/var/lib/edgeproof"
GPU_RUNTIME = "onnxruntime-gpu==1.23.2"
"""The last ONNX Runtime on PyPI that is built for CUDA 12; later ones want CUDA 13."""
OPENVINO_RUNTIME = "onnxruntime-openvino==1.24.1"
_PARTS = 5
"""Of a wheel's name, at least. Source: PyPA, *Binary distribution format*."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image to begin with.

    Attributes:
        name: With its tag.
        python: Command of the Python in it, or that its distribution has.
        packages: Debian packages to add.
        note: What to know of it.
    """

    name: str
    python: str = "python3"
    packages: tuple[str, ...] = ()
    note: str = ""


_JAMMY = ("python3.11", "python3.11-venv")
_NOBLE = ("python3.12", "python3.12-venv")
SLIM = Image("python:3.12.11-slim-bookworm", "python3.12")
IMAGES: Mapping[str, Image] = {
    "cpu": SLIM,
    "openvino": SLIM,
    "gpu": Image("nvidia/cuda:12.6.3-cudnn-runtime-ubuntu24.04", "python3.12", _NOBLE, "CUDA 12.6 and cuDNN 9"),
}
JETPACK: Mapping[str, Image] = {
    "6.0": Image("nvcr.io/nvidia/l4t-tensorrt:r8.6.2-runtime", "python3.11", _JAMMY, "L4T 36.3, TensorRT 8.6"),
    "6.1": Image("nvcr.io/nvidia/l4t-tensorrt:r10.3.0-runtime", "python3.11", _JAMMY, "L4T 36.4, TensorRT 10.3"),
    "6.2": Image("nvcr.io/nvidia/l4t-tensorrt:r10.3.0-runtime", "python3.11", _JAMMY, "L4T 36.4, TensorRT 10.3"),
    "7.0": Image("nvidia/cuda:13.0.0-cudnn-runtime-ubuntu24.04", "python3.12", _NOBLE, "L4T 38, CUDA 13"),
}
"""JetPack → NVIDIA's image for it. JetPack 5 (Ubuntu 20.04) has no Python that edgeproof runs on."""


@dataclass(frozen=True, slots=True)
class Container:
    """What can be set.

    Attributes:
        base: What it runs on.
        jetpack: For ``jetson``: which JetPack the board has.
        image: Another image to begin with, best by digest; it needs the same Python.
        device: The device's name; empty is the first that the bundle is for.
        port: On 127.0.0.1 of the host.
        threads: Of one inference; 0 leaves it to the runtime.
        user: Id of the user (and group) that everything runs as.
    """

    base: Literal["cpu", "gpu", "openvino", "jetson"] = "cpu"
    jetpack: str = "6.2"
    image: str = ""
    device: str = ""
    port: int = 8600
    threads: int = 0
    user: int = 10001


@dataclass(frozen=True, slots=True)
class Cargo:
    """What goes into the container.

    Attributes:
        manifest: Of the bundle.
        bundle: The bundle file.
        keys: Public keys whose bundles the device takes.
        wheels: Wheels that pip is to use before any index: a build of ONNX Runtime for the board, edgeproof itself.
    """

    manifest: Manifest
    bundle: Path
    keys: Sequence[Path]
    wheels: Sequence[Path] = ()


def write_container(cargo: Cargo, out: Path, settings: Container) -> tuple[Path, ...]:
    """Write the folder that ``docker build`` takes.

    Returns:
        The files written.

    Raises:
        InputError: serving.exists, serving.setting, serving.keys, serving.wheel, serving.device, serving.runtime,
            files.*.
        UnsupportedError: serving.format, serving.jetpack, serving.not_installed.
    """
    device = _checked(cargo, settings)
    image = _image(settings)
    found = _pins(cargo, settings)
    _check_runtime(cargo.manifest, found)
    with new_folder(out) as folder:
        bundle = f"bundle/{cargo.manifest.name}-{cargo.manifest.bundle_version}.bundle"
        copied(cargo.bundle, folder / bundle)
        keys = [f"keys/{i}.pub" for i in range(1, len(cargo.keys) + 1)]
        for name, key in zip(keys, cargo.keys, strict=True):
            copied(key, folder / name)
        for wheel in cargo.wheels:
            copied(wheel, folder / "wheels" / wheel.name)
        lines = "".join(f"{name}=={v}\n" for name, v in found.items())
        write_text(folder / "requirements.txt", lines)
        write_text(folder / "entrypoint.sh", entrypoint(cargo.manifest, bundle, keys, device, settings))
        (folder / "entrypoint.sh").chmod(0o755)
        write_text(folder / "Dockerfile", dockerfile(cargo.manifest, image, settings, wheels=bool(cargo.wheels)))
        write_text(folder / "compose.yaml", compose(cargo.manifest, settings))
        allowed = ["bundle", "keys", "wheels", "entrypoint.sh", "requirements.txt"]
        write_text(folder / ".dockerignore", "".join(f"{line}\n" for line in ("*", *(f"!{a}" for a in allowed))))
    return written(out)


def dockerfile(manifest: Manifest, image: Image, settings: Container, *, wheels: bool) -> str:
    """The Dockerfile."""
    find = f"--find-links {HOME}/wheels " if wheels else ""
    health = f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{settings.port}/health', timeout=4)"
    lines = [
        f"# {manifest.label} for {settings.base}, as a device that serves, watches and rolls back by itself.",
        f"# {image.note or 'The image'}; pin it by digest with --set image=NAME@sha256:... once it is chosen.",
        f"FROM {image.name}",
        "",
        f"LABEL org.opencontainers.image.title={json.dumps(manifest.name)} \\",
        f"      org.opencontainers.image.version={json.dumps(str(manifest.bundle_version))} \\",
        f"      org.edgeproof.manifest={json.dumps(manifest.digest)}",
        "",
        *_packages(image),
        f"COPY requirements.txt {HOME}/requirements.txt",
        *([f"COPY wheels/ {HOME}/wheels/"] if wheels else []),
        f"RUN {image.python} -m venv {HOME}/venv \\",
        f" && {HOME}/venv/bin/pip install --no-cache-dir --no-deps {find}-r {HOME}/requirements.txt",
        "",
        f"RUN groupadd --system --gid {settings.user} edgeproof \\",
        f" && useradd --system --uid {settings.user} --gid {settings.user} --home-dir {ROOT} --no-create-home "
        "--shell /usr/sbin/nologin edgeproof \\",
        f" && install -d -o {settings.user} -g {settings.user} {ROOT}",
        f"COPY bundle/ {HOME}/bundle/",
        f"COPY keys/ {HOME}/keys/",
        f"COPY entrypoint.sh {HOME}/entrypoint.sh",
        "",
        f'ENV PATH="{HOME}/venv/bin:$PATH" \\',
        "    PYTHONUNBUFFERED=1 \\",
        "    PYTHONDONTWRITEBYTECODE=1",
        f"USER {settings.user}:{settings.user}",
        f"WORKDIR {ROOT}",
        f'VOLUME ["{ROOT}"]',
        "HEALTHCHECK --interval=30s --timeout=5s --start-period=120s --retries=3 \\",
        f"  CMD {json.dumps([f'{HOME}/venv/bin/python', '-c', health])}",
        "STOPSIGNAL SIGTERM",
        f'ENTRYPOINT ["{HOME}/entrypoint.sh"]',
    ]
    return "\n".join(lines) + "\n"


def entrypoint(manifest: Manifest, bundle: str, keys: Sequence[str], device: str, settings: Container) -> str:
    """What runs at every start: a new volume becomes a device; a newer bundle is put on trial; then it serves."""
    q = shlex.quote
    trusted = " ".join(f'--key "$here"/{q(k)}' for k in keys)
    threads = f" --threads {settings.threads}" if settings.threads else ""
    return f"""#!/bin/sh
# A new volume becomes a device with this bundle as its golden one. A volume that knows another bundle gets this one on
# trial, where the device takes it: an older one is refused, and what runs stays.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=${{EDGEPROOF_ROOT:-{ROOT}}}
port=${{EDGEPROOF_PORT:-{settings.port}}}
bundle=$here/{q(bundle)}
if [ ! -f "$root/device.json" ]; then
  edgeproof provision --root "$root" --device {q(device)} --line {q(manifest.product_line)} {trusted} --golden "$bundle"
elif ! cmp -s "$bundle" "$root/slots/golden.bundle"; then
  edgeproof install "$bundle" --root "$root" || echo "the bundle of this image was not installed; what runs stays" >&2
fi
exec edgeproof serve --root "$root" --port "$port"{threads} "$@"
"""


def compose(manifest: Manifest, settings: Container) -> str:
    """The Compose file."""
    import yaml

    service: dict[str, Any] = {
        "build": ".",
        "network_mode": "host",
        "restart": "unless-stopped",
        "read_only": True,
        "tmpfs": ["/tmp"],  # noqa: S108 (inside the container)
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "volumes": [f"state:{ROOT}"],
    }
    if settings.base == "jetson":
        service |= {"runtime": "nvidia", "group_add": ["video"]}
    if settings.base == "gpu":
        devices = [{"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}]
        service["deploy"] = {"resources": {"reservations": {"devices": devices}}}
    value = {"name": manifest.name.replace(".", "-"), "services": {"serve": service}, "volumes": {"state": {}}}
    text: str = yaml.safe_dump(value, sort_keys=False)
    return (
        "# docker compose up --build; then GET http://127.0.0.1:" + f"{settings.port}/health on this machine.\n" + text
    )


def _packages(image: Image) -> list[str]:
    if not image.packages:
        return []
    return [
        "# The image's own release decides the version: archives keep only the latest of each package.",
        "# hadolint ignore=DL3008",
        "RUN apt-get update \\",
        f" && apt-get install -y --no-install-recommends {' '.join(image.packages)} \\",
        " && rm -rf /var/lib/apt/lists/*",
        "",
    ]


def _image(settings: Container) -> Image:
    """The image to begin with.

    Raises:
        UnsupportedError: serving.jetpack.
    """
    if settings.base != "jetson":
        found = IMAGES[settings.base]
    elif settings.jetpack in JETPACK:
        found = JETPACK[settings.jetpack]
    else:
        problem = f"has no image with a Python from 3.11 on; there are {', '.join(JETPACK)}"
        hint = "update the board, or run edgeproof outside a container"
        raise UnsupportedError("serving.jetpack", f"JetPack {settings.jetpack}", problem, hint)
    return Image(settings.image or found.name, found.python, found.packages, found.note)


def _pins(cargo: Cargo, settings: Container) -> dict[str, str]:
    instead = {"gpu": GPU_RUNTIME, "openvino": OPENVINO_RUNTIME}.get(settings.base, "")
    wheel = next((w.name for w in cargo.wheels if w.name.startswith("onnxruntime")), "")
    if wheel:
        name, pinned = wheel.split("-")[:2]
        instead = f"{name.replace('_', '-')}=={pinned}"
    return pins("edgeproof", frozenset({"device"}), {"onnxruntime": instead} if instead else {})


def _checked(cargo: Cargo, settings: Container) -> str:
    """Refuse what cannot run; the device's name."""
    manifest = cargo.manifest
    if manifest.format != "onnx":
        hint = "pack the ONNX model, or start the model's own runtime from the slot"
        raise UnsupportedError("serving.format", manifest.label, f"is {manifest.format}; onnx is served", hint)
    if not cargo.keys:
        hint = "give --key of the product line"
        raise InputError("serving.keys", manifest.label, "would be installed by a device that believes nobody", hint)
    for wheel in cargo.wheels:
        if len(wheel.name.split("-")) < _PARTS or wheel.suffix != ".whl" or not zipfile.is_zipfile(plain(wheel)):
            hint = "give the file under the name that it was built with, NAME-VERSION-PYTHON-ABI-PLATFORM.whl"
            raise InputError("serving.wheel", str(wheel), "is no wheel, or a damaged one", hint)
    for key, low, high in (("port", 1, 65535), ("user", 1, 2**31 - 1), ("threads", 0, 4096)):
        value = getattr(settings, key)
        if not low <= value <= high:
            raise InputError("serving.setting", key, f"is {value}; expected {low} to {high}", f"write {key}={low}")
    device = settings.device or next(iter(manifest.device_allow), "")
    if device not in manifest.device_allow:
        listed = ", ".join(manifest.device_allow) or "nobody"
        problem = f"is for {listed}, not for {device or 'any device'}"
        raise InputError("serving.device", manifest.label, problem, "pack it with --device, or set device=NAME")
    return device


def _check_runtime(manifest: Manifest, found: Mapping[str, str]) -> None:
    """The pinned ONNX Runtime is one that the bundle takes, if it says.

    Raises:
        InputError: serving.runtime.
    """
    names = [n for n in found if n == "onnxruntime" or n.startswith("onnxruntime-")]
    for wanted in (r for r in manifest.runtime if r.name == "onnxruntime"):
        if any(in_range(found[n], wanted.min, wanted.max, n) for n in names):
            return
        pinned = ", ".join(f"{n} {found[n]}" for n in names) or "no ONNX Runtime"
        problem = f"takes onnxruntime {wanted.min or 'any'} to {wanted.max or 'any'}; the container has {pinned}"
        hint = "install a version in that range here, or give its wheel with --wheel"
        raise InputError("serving.runtime", manifest.label, problem, hint)
