"""The catalogue: devices, links and prices, each a small text file whose figures state their source.

    devices/NAME.toml   one device: peaks, memory, caches, its usual node
    links/NAME.toml     one link: latency and bandwidth
    prices/VENDOR.csv   vendors' prices per hour, with dates
    calibrations/NAME.toml  figures fitted for a device from published timings, with their error

A user's device is a file of the same form. It is given by its path, or stored in the user's data folder, where
calibration writes the device `local`. Other packages can add devices: their entry point names a package of *.toml files.
"""

from __future__ import annotations

import csv
import functools
import os
import re
import tomllib
from datetime import date
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import platformdirs
import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator

from chronograd import trust
from chronograd.errors import FileFormatError, InputError, NotFoundError, near_names, printable, problems
from chronograd.files import check_plain, read_bytes, write_aside
from chronograd.hardware import instances
from chronograd.hardware.instances import Date, Tag

Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
Rate = Annotated[float, Field(gt=0, strict=True)]
Count = Annotated[int, Field(gt=0, strict=True)]

# A device with all its calibrations has some 20,000.
MAX_BYTES = 300_000
MAX_DOTS = 64
_FLOAT = re.compile(r"(?<![\w.-])-?\d+\.\d+(?:e[-+]?\d+)?(?![\w.])", re.ASCII)
PRICE_FILES = "write numbers as 3.06, dates as 2026-03-01, kinds as on-demand or spot, and tags as in `chronograd devices --prices`"
_DECIMAL_COMMA = re.compile(r"\s{0,9}\d{1,9},\d{1,6}\s{0,9}")
DEVICE_FILES = "`chronograd devices NAME --json` shows every field of a device that is right"


class _CatalogueEntry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    def to_toml(self) -> str:
        """Return the text of a file that reads back to an equal entry."""
        return tomli_w.dumps(self.model_dump(mode="json", exclude_none=True, exclude_defaults=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file atomically; create its folder."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_aside(Path(path), self.to_toml())


class Source(_CatalogueEntry):
    """The source of figures.

    Attributes:
        of: the fields that it covers, such as `bandwidth_bytes_per_s` or `peak_flops_per_s.fp16`; the name of a table
            covers all its fields.
        source: an address or the name of a document, or the arithmetic.
        date: when it was read, YYYY, YYYY-MM or YYYY-MM-DD.
        tag: verified (seen in the source or a table quoting it), recalled (from memory), computed, assumed, measured.
    """

    of: tuple[str, ...]
    source: str
    date: Date
    tag: Tag


class Node(_CatalogueEntry):
    """The usual machine of a device. Links are names of the link catalogue, `host` is one of `hosts.toml`.

    `per_group` devices share a switch or a board, such as a quad of eight; messages between groups cross `group_link`.
    """

    devices_per_node: Count
    intra_link: Name
    inter_link: Name
    host_link: Name | None = None
    host: Name | None = None
    per_group: Count | None = None
    group_link: Name | None = None


class PricedAs(_CatalogueEntry):
    """The device under which vendors price this one, and the number of those that make one of this."""

    device: Name
    count: Rate = 1


class Link(_CatalogueEntry):
    """A link between devices.

    Attributes:
        per: the owner of the bandwidth: one `device`, or one `node` with all its devices.
        latency_s: of one message, or one step of a collective.
        bandwidth_bytes_per_s: in one direction, with both directions in use.
        burst_bytes: bytes that pass at once after a rest, if a token bucket limits the rate.
    """

    name: Name
    title: str
    note: str = ""
    per: Literal["device", "node"] = "device"
    latency_s: Annotated[float, Field(ge=0, strict=True)]
    bandwidth_bytes_per_s: Rate
    burst_bytes: Annotated[float, Field(ge=0, strict=True)] = 0.0
    source: tuple[Source, ...] = ()


class Device(_CatalogueEntry):
    """A device that runs networks.

    Attributes:
        name, aliases: names in a job; lower case.
        kind: an `accelerator` needs the vendor's compiler, whose step times are not predicted.
        note: distinguishes devices with similar names.
        chip: the vendor's name of the silicon. Devices of one chip differ in active units, clocks, memory and power.
        memory_bytes: as sold.
        reported_bytes: the total that its driver reports, as in `nvidia-smi` or `rocm-smi`, less error correction; None if unknown.
        bandwidth_bytes_per_s: of that memory.
        l2_bytes: the last cache that all units share.
        num_units: streaming multiprocessors, or cores of a CPU.
        tdp_w: board power limit.
        issued_share: the share of the vector peak that its schedulers can feed without pairing independent instructions.
        peak_flops_per_s: by precision, dense, 1 FMA = 2 FLOPs, at boost clock unless the title says otherwise. Vector units
            compute fp32 and fp64; tensor cores compute tf32, bf16 and, if the device has them, fp16. A precision without
            arithmetic on the device is absent.
        fp32_matrix_flops_per_s: of fp32 products on matrix units, if the device has such units.
        base_peak_flops_per_s: the same at base clock, for papers that use it.
        peak_8bit_ops_per_s: of tensor cores in fp8 and int8, dense. No prediction uses it, because no job runs in 8 bits.
        node: its usual machine.
        priced_as: set when vendors price it under another name.
        source: the source of every figure.
        calibration: figures measured on it or fitted for it; `predict` reads them.
        provenance: how and when the calibration was made.
    """

    name: Name
    title: str
    aliases: tuple[Name, ...] = ()
    note: str = ""
    kind: Literal["gpu", "cpu", "accelerator"]
    chip: Name | None = None
    memory_bytes: Count
    reported_bytes: Count | None = None
    bandwidth_bytes_per_s: Rate
    l2_bytes: Count
    num_units: Count
    tdp_w: Rate | None = None
    issued_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    year: Annotated[int, Field(ge=1990, le=2100, strict=True)] | None = None
    priced_as: PricedAs | None = None
    peak_flops_per_s: dict[Precision, Rate]
    fp32_matrix_flops_per_s: Rate | None = None
    base_peak_flops_per_s: dict[Precision, Rate] = Field(default_factory=dict)
    peak_8bit_ops_per_s: dict[Literal["fp8", "int8"], Rate] = Field(default_factory=dict)
    node: Node
    source: tuple[Source, ...] = ()
    calibration: dict[str, Any] | None = None
    provenance: dict[str, Any] = Field(default_factory=dict)

    def __hash__(self) -> int:
        return hash(self.name)

    def peak(self, precision: Precision = "fp32") -> float:
        """Return the peak FLOP/s of products in a precision. Raises InputError if the device has no such arithmetic.

        >>> device("t4").peak("fp16"), device("mi210").peak("fp32")
        (65000000000000.0, 45300000000000.0)
        """
        if precision not in self.peak_flops_per_s:
            has = ", ".join(self.peak_flops_per_s)
            raise InputError(f"{self.name} has no {precision} arithmetic", f"set training.precision to one of {has}")
        is_fp32 = precision == "fp32"
        return (
            self.fp32_matrix_flops_per_s
            if is_fp32 and self.fp32_matrix_flops_per_s
            else self.peak_flops_per_s[precision]
        )

    @property
    def usable_bytes(self) -> int:
        """Return the memory that programs can use: the driver's total, or the capacity as sold if the total is unknown.

        >>> device("l40s").usable_bytes / 2**20, device("l40s").memory_bytes / 2**20
        (46068.0, 49152.0)
        """
        return self.reported_bytes or self.memory_bytes

    @property
    def vector_flops_per_s(self) -> float:
        """Return the peak FLOP/s of vector units in fp32."""
        return self.peak_flops_per_s["fp32"]

    @property
    def is_desktop(self) -> bool:
        """Return whether the device belongs to a line for desktops. Their boards are supplied and cooled above the boost clock."""
        return any(word in self.title.lower() for word in ("geforce", "titan", "radeon vega", "core i"))

    def check_predicted(self) -> None:
        """Raise InputError for an accelerator, whose step time and memory depend on its compiler."""
        if self.kind == "accelerator":
            raise InputError(
                f"{self.name} cannot be predicted: we have neither measurements of it nor a model of its compiler",
                f"see its memory and peaks with `chronograd devices {self.name}`, or predict a GPU",
            )

    def machine_balance(self, precision: Precision = "fp32") -> float:
        """Return the FLOPs that the device can do while it moves one byte: peak / bandwidth, the ridge of its roofline.

        >>> round(device("k80").machine_balance(), 1)
        18.2
        """
        return self.peak(precision) / self.bandwidth_bytes_per_s


def _or_none(cell: Any) -> Any:
    """Read an empty cell of a table as None."""
    return None if cell == "" else cell


class Price(_CatalogueEntry):
    """The price of a vendor for one hour of one instance, as rented.

    Attributes:
        count: devices in the instance; half a device if a board of two is sold by halves.
        price_usd_per_hour: of the whole instance.
        includes_host: False if CPU and memory of the virtual machine are billed separately.
        date: when the price was valid; empty if unknown.
        vcpus: virtual CPUs of the instance's host; None if unknown.
        up_to: devices of the largest machine sold at the same price per device, such as pods of one to eight; `count` if None.
        region: of the cloud; empty if unknown.
    """

    vendor: str
    instance: str
    device: Name
    count: Annotated[float, Field(ge=0.01, le=1e6)]
    price_usd_per_hour: Annotated[float, Field(ge=0, le=1e9)]
    kind: Literal["on-demand", "spot"]
    includes_host: bool
    date: Date
    tag: Tag
    source: str
    vcpus: Annotated[float | None, Field(ge=0.5, le=1e5), BeforeValidator(_or_none)] = None
    up_to: Annotated[float | None, Field(ge=0.01, le=1e6), BeforeValidator(_or_none)] = None
    region: str = ""

    @field_validator("date")
    @classmethod
    def _is_in_the_calendar(cls, text: str) -> str:
        if text:
            date(*(*(int(part) for part in text.split("-")), 1, 1)[:3])
        return text

    @property
    def usd_per_device_hour(self) -> float:
        """Return the price of one device for an hour, if all of the instance is used."""
        return self.price_usd_per_hour / self.count

    @property
    def most_devices(self) -> float:
        """Return the devices of the largest machine at this price per device."""
        return max(self.count, self.up_to or self.count)

    def instances(self, devices: Any) -> Any:
        """Return the whole instances for a number of devices, or for an array of numbers."""
        return np.ceil(np.asarray(devices) / self.count - 1e-9)

    def usd_per_hour(self, devices: Any) -> Any:
        """Return the dollars per hour of the whole instances for a number of devices."""
        return self.instances(devices) * self.price_usd_per_hour


def device(name_or_path: str | os.PathLike[str]) -> Device:
    """Return a device by name or alias in any case, by the path of a file ending in `.toml`, or `local`.

    Raises NotFoundError with similar names; FileFormatError that names the file, field and value; InputError for
    `local` if this machine has not been calibrated.

    >>> device("A100").title, device("Tesla V100-SXM2-16GB").name
    ('NVIDIA A100 SXM4 40 GB', 'v100')
    """
    text = os.fspath(name_or_path)
    if text.endswith(".toml"):
        return _read_device(Path(text))
    name = _normal(text)
    if name in _device_names():
        return _devices()[_device_names()[name]]
    if name in _user_files():
        return _read_own(_user_files()[name], Device)
    if name == "local":
        raise InputError(
            "this machine has not been measured, so there is no device 'local'",
            "run `chronograd calibrate`, or name a device of the catalogue (`chronograd devices` lists them)",
        )
    raise NotFoundError("device", text, [*_device_names(), *_user_files()], "`chronograd devices`")


def is_cpu(name: str) -> bool:
    """Return whether a device is a CPU; false for one that is not known, such as `local` before a calibration."""
    try:
        return device(name).kind == "cpu"
    except InputError:
        return False


def variants(name: str) -> list[Device]:
    """Return the devices that an ambiguous name may mean, first the one that `device` returns; only that one for a
    clear name.

    Cards of one line share a chip and differ in memory, bandwidth or form.

    >>> [one.name for one in variants("a100")]
    ['a100-40', 'a100-80', 'a100-80-pcie', 'a100-pcie']
    >>> [one.name for one in variants("a100-pcie")]
    ['a100-pcie']
    """
    chosen = device(name)
    line = _normal(name)
    others = [one for one in _devices().values() if one.name.startswith(f"{line}-") and one.chip == chosen.chip]
    return [chosen, *(one for one in others if one != chosen)]


def devices() -> list[Device]:
    """Return every device of the catalogue by name, then the user's. Raises FileFormatError if one of those is broken."""
    return [*_devices().values(), *(_read_own(path, Device) for path in _user_files().values())]


def of_driver_name(name: str) -> Device | None:
    """Return the GPU of a driver's name, such as `NVIDIA A100-SXM4-80GB`; None for another variant of one.

    It is a name or alias of the catalogue, or contains all parts of the device's name; the device with most parts wins.
    A name with PCIe or NVL means a device with that in its name, if the catalogue has it in another form.

    >>> of_driver_name("NVIDIA A100 80GB PCIe").name, of_driver_name("NVIDIA GeForce RTX 4090 Ti")
    ('a100-80-pcie', None)
    """
    own = _devices().get(_device_names().get(_normal(name), ""))
    if own is not None and own.kind == "gpu":
        return own
    words = re.sub(r"[^a-z0-9]+", " ", name.lower()).split()
    known = {"".join(words[i:j]) for i in range(len(words)) for j in range(i + 1, min(i + 4, len(words) + 1))}
    known |= {word.removesuffix("gb") for word in words}
    fitting = [d for d in _devices().values() if d.kind == "gpu" and set(d.name.split("-")) <= known]
    found = max(fitting, key=lambda d: (d.name.count("-"), "pcie" in d.name), default=None)
    if found is None or any(word in words and not found.name.endswith(word) for word in ("ti", "super")):
        return None
    is_other_form = any(form in words and form not in found.name for form in ("pcie", "nvl"))
    return None if is_other_form and "sxm" in found.title.lower() else found


def user_device_path(name: str) -> Path:
    """Return the file of a user's device, including `local`; follows XDG_DATA_HOME."""
    return Path(platformdirs.user_data_path("chronograd")) / "devices" / f"{name}.toml"


def link(name: str) -> Link:
    """Return a link by name: the user's, else the catalogue's. Raises NotFoundError, FileFormatError.

    >>> link("nvlink2").bandwidth_bytes_per_s
    150000000000.0
    """
    known = {**_links(), **_user_links()}
    if _normal(name) not in known:
        raise NotFoundError("link", name, known, "`chronograd devices --links`")
    return known[_normal(name)]


def user_link_path(name: str) -> Path:
    """Return the file of a user's link, such as a measured one; follows XDG_DATA_HOME."""
    return Path(platformdirs.user_data_path("chronograd")) / "links" / f"{name}.toml"


def links() -> list[Link]:
    """Return every link by name; a user's link replaces the catalogue's."""
    return list({**_links(), **_user_links()}.values())


def prices(device: str | Device | None = None) -> list[Price]:
    """Return prices of one device, latest first, or all prices.

    Vendors price some devices under another name, such as a K80 board of two GPUs. Prices returned here are for this
    device: `count` is its number in an instance. The table also has devices that the catalogue lacks, under the table's
    name. Raises NotFoundError for a name in neither.
    """
    if device is None:
        return list(_prices())
    entry = device if isinstance(device, Device) else _priced_device(device)
    if entry is None:
        found = [row for row in _prices() if row.device == _normal(str(device))]
    elif entry.priced_as is None:
        found = [row for row in _prices() if row.device == entry.name]
    else:
        unit, times = entry.priced_as.device, entry.priced_as.count
        rows = [row for row in _prices() if row.device == unit]
        found = [_in_units_of(row, entry.name, times) for row in rows]
    return sorted(found, key=lambda row: row.date, reverse=True)


def _in_units_of(row: Price, name: str, times: float) -> Price:
    """Convert a price of another device; `times` of those make one of this."""
    up_to = None if row.up_to is None else row.up_to / times
    return row.model_copy(update={"device": name, "count": row.count / times, "up_to": up_to})


def _normal(name: str) -> str:
    """Return `name` as files write it: lower case, blanks and underscores as hyphens."""
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def _priced_device(name: str) -> Device | None:
    """Return the device of that name; None for a name that only the price table has."""
    is_only_priced = _normal(name) not in _device_names() and _normal(name) in {row.device for row in _prices()}
    return None if is_only_priced else device(name)


@functools.cache
def _devices() -> dict[str, Device]:
    fitted = {path.name: path for path in _files("calibrations", ".toml")}
    found = {}
    for path in _files("devices", ".toml"):
        own = _read_device(path)
        if path.name in fitted:
            calibration = tomllib.loads(fitted[path.name].read_text(encoding="utf-8"))
            own = own.model_copy(update={"calibration": calibration})
        found[path.name.removesuffix(".toml")] = own
    return found


@functools.cache
def _device_names() -> dict[str, str]:
    """Map names and aliases to names. Two devices with the same alias would be a defect of the catalogue."""
    names = {name: name for name in _devices()}
    for name, entry in _devices().items():
        for alias in entry.aliases:
            assert alias not in names, f"{alias} is both {names[alias]} and {name}"
            names[alias] = name
    return names


def _user_files() -> dict[str, Path]:
    """Return files of the user's and of other packages' devices by name. They cannot replace devices of the catalogue."""
    own = {_normal(path.stem): path for path in sorted(user_device_path("local").parent.glob("*.toml"))}
    return {name: path for name, path in {**_package_files(), **own}.items() if name not in _device_names()}


@functools.cache
def _package_files() -> dict[str, Path]:
    """Return the files of devices by name that other installed packages add."""
    folders = [Path(trust.loaded(point).__path__[0]) for point in trust.plugins("devices").values()]
    return {_normal(path.stem): path for folder in folders for path in sorted(folder.glob("*.toml"))}


@functools.cache
def _links() -> dict[str, Link]:
    return {path.name.removesuffix(".toml"): _read(path, Link) for path in _files("links", ".toml")}


def _user_links() -> dict[str, Link]:
    return {_normal(path.stem): _read_own(path, Link) for path in sorted(user_link_path("x").parent.glob("*.toml"))}


def user_prices_path() -> Path:
    """Return the file of the user's prices; follows XDG_DATA_HOME."""
    return Path(platformdirs.user_data_path("chronograd")) / "prices.csv"


def _prices() -> tuple[Price, ...]:
    """Return all prices, the user's first: with equal dates they win."""
    path = user_prices_path()
    own = _read_prices_version(path, path.stat().st_mtime_ns) if path.exists() else ()
    return (*own, *_known_prices())


@functools.cache
def _known_prices() -> tuple[Price, ...]:
    return tuple(row for path in _files("prices", ".csv") for row in read_prices(path))


@functools.lru_cache(maxsize=4)
def _read_prices_version(path: Path, modified_ns: int) -> tuple[Price, ...]:
    return tuple(read_prices(path))


def read_prices(path: Traversable) -> list[Price]:
    """Read a price table. A row of a known instance type may leave out device, number of devices and host.

    Semicolons or tabs may separate its columns; then a price may have a decimal comma.

    Raises FileFormatError with the line and field that are wrong.
    """
    try:
        text = _text(path).removeprefix("\ufeff")
        first = text.partition("\n")[0]
        separator = next((one for one in (";", "\t") if one in first and "," not in first), ",")
        lines = list(csv.DictReader(text.splitlines(), delimiter=separator))
    except (OSError, ValueError, csv.Error) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    columns = [name for name in (lines[0] if lines else ()) if name is not None]
    if lines and (missing := [name for name in ("vendor", "instance", "price_usd_per_hour") if name not in columns]):
        raise FileFormatError(
            f"{path.name} has no column {missing[0]}; its columns are {printable(', '.join(columns))[:120]}",
            f"its first line names the columns: {', '.join(Price.model_fields)}",
        )
    if separator != ",":
        lines = [_with_point(line) for line in lines]
    return [
        _validated(_in_full(line), Price, f"{path.name}, line {number}", PRICE_FILES)
        for number, line in enumerate(lines, 2)
    ]


def _with_point(line: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose price has a decimal point instead of a comma."""
    price = str(line.get("price_usd_per_hour"))
    return {**line, "price_usd_per_hour": price.replace(",", ".")} if _DECIMAL_COMMA.fullmatch(price) else line


def _in_full(line: dict[str, Any]) -> dict[str, Any]:
    """Complete a row of prices from the files of instance types."""
    known = instances.priced(str(line.get("vendor")), str(line.get("instance")))
    if known is None:
        return line
    facts = {"device": known.device, "count": known.count, "vcpus": known.vcpus}
    return {**line, **{name: fact for name, fact in facts.items() if not line.get(name)}}


def _files(folder: str, ending: str) -> list[Traversable]:
    found = (resources.files("chronograd.hardware") / folder).iterdir()
    return sorted((path for path in found if path.name.endswith(ending)), key=lambda path: path.name.rpartition(".")[0])


def _text(path: Traversable) -> str:
    """Return the text of a file of the catalogue, or of the user."""
    data = read_bytes(path, MAX_BYTES) if isinstance(path, Path) else path.read_bytes()
    text = data.decode("utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        # Time and memory of tomllib grow with the square of a key's parts: 30,000 took 43 s.
        if line.count(".") > MAX_DOTS and _FLOAT.sub("", line).count(".") > MAX_DOTS:
            raise ValueError(f"line {number} has a key of more than {MAX_DOTS} parts")
    return text


def _read_device(path: Traversable) -> Device:
    found = _read(path, Device)
    for where in ("intra_link", "inter_link", "host_link"):
        name = getattr(found.node, where)
        known = {**_links(), **_user_links()} if name is not None and name not in _links() else _links()
        if name is not None and name not in known:
            near = " or ".join(near_names(name, known)) or ", ".join(known)
            raise FileFormatError(f"{path}: node.{where} is {name!r}, which is not a link", f"known: {near}")
    return found


Entry = TypeVar("Entry", bound=_CatalogueEntry)


def _read_own(path: Path, form: type[Entry]) -> Entry:
    """Read a user's file, and again after it changes. The reader refuses a dangling link."""
    entry: Entry = _read_version(path, form, path.stat().st_mtime_ns if path.exists() else 0)
    return entry


@functools.lru_cache(maxsize=64)
def _read_version(path: Path, form: type[_CatalogueEntry], modified_ns: int) -> Any:
    """Read a version of a file, cached: a calibration takes 50 ms to read, and every prediction needs it."""
    return _read_device(path) if form is Device else _read(path, form)


def _read(path: Traversable, form: type[Entry]) -> Entry:
    try:
        data = tomllib.loads(_text(path))
        check_plain(data)
    except FileNotFoundError:
        raise FileFormatError(
            f"no {form.__name__.lower()} file at {path}", "`chronograd devices` lists names"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"cannot read {path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{path} is not valid TOML: {error}", DEVICE_FILES) from None
    return _validated(data, form, str(path))


def _validated(data: dict[str, Any], form: type[Entry], where: str, hint: str = DEVICE_FILES) -> Entry:
    try:
        return form.model_validate(data)
    except ValidationError as error:
        message = f"{where} is not a {form.__name__.lower()}\n  " + "\n  ".join(problems(error, form))
        raise FileFormatError(message, hint) from None
