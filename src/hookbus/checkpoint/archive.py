"""A checkpoint file seen from outside: the zip archive that torch writes, and whether it is whole.

torch writes each tensor as one uncompressed record of a zip archive, beside a pickle that describes them. Every record
has a CRC-32 in the archive's directory, at its end. :func:`seal` adds a SHA-256 of everything but the contents, as the
archive's comment, so that each byte is vouched for: contents by the directory, the rest by the seal. torch itself, when
it loads a file, checks none of this. Files of Lightning and of torch have no seal, but the same directory.

Nothing here needs torch.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final

from hookbus.checkpoint.errors import CheckpointError, DamagedCheckpointError

#: What the comment of a sealed archive begins with; 64 hexadecimal digits follow.
SEAL: Final = b"hookbus-1 sha256:"
_END: Final = struct.Struct("<4s4H2LH")  # the record that ends a zip archive
_END_MAGIC: Final = b"PK\x05\x06"
_DIRECTORY_MAGIC: Final = b"PK\x01\x02"  # with which the directory begins
_LOCAL: Final = struct.Struct("<4s5H3L2H")
_THREADS: Final = min(4, os.cpu_count() or 1)
_SMALL: Final = 2**20  # bytes up to which threads cost more than they save


def seal(file: BinaryIO) -> None:
    """Put the seal behind a zip archive without a comment.

    Args:
        file: open for reading and writing; stands at its end afterwards.
    """
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
    at = file.seek(-_END.size, os.SEEK_END)
    end = file.read(_END.size)
    comment = SEAL + _digest(file, infos, at)
    file.seek(at)
    file.write(end[:-2] + struct.pack("<H", len(comment)) + comment)


def check(path: str | os.PathLike[str], *, contents: bool = True) -> bool:
    """See to it that a file is whole.

    Args:
        path: a local file.
        contents: also read every byte and compare with the checksums.

    Returns:
        Whether the file is sealed. False: an archive of torch or Lightning, of which only the records have checksums,
        or a file in torch's format before 1.6, which has none.

    Raises:
        DamagedCheckpointError: it is empty or cut off, or bytes have changed.
        CheckpointError: it is no archive at all.
    """
    path = os.fspath(path)
    if os.path.isdir(path):
        raise CheckpointError(f"{path!r} is a folder; a checkpoint is a file in it")
    with open(path, "rb") as file:
        head = file.read(4)
        if not head:
            raise DamagedCheckpointError(f"{path!r} is empty (0 bytes): the process that wrote it did not get further")
        if head != b"PK\x03\x04":
            if is_bare_pickle(head):
                return False
            raise CheckpointError(
                f"{path!r} is no checkpoint: it begins with {head!r}, an archive of torch with b'PK\\x03\\x04'"
            )
        try:
            archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
            _check_end(path, file)
            size = os.fstat(file.fileno()).st_size
            raise DamagedCheckpointError(
                f"{path!r} is cut off: it has {size} bytes and lacks the directory that stands at the end ({error})"
            ) from None
        with archive:
            _check_kind(path, archive.namelist())
            sealed = _check_seal(path, file, archive)
            if contents:
                _check_records(path, file, archive.infolist(), sealed)
    return sealed


def is_bare_pickle(head: bytes) -> bool:
    """Whether a file that begins so is a pickle outside of an archive, as torch wrote before 1.6; it has no checksums."""
    return head[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def records(path: str | os.PathLike[str]) -> dict[str, int]:
    """The records of an archive and their sizes in bytes, without the name of the archive that stands before each."""
    with zipfile.ZipFile(path) as archive:
        return {_short(info.filename): info.file_size for info in archive.infolist()}


def read_record(path: str | os.PathLike[str], name: str) -> bytes:
    """The bytes of one record.

    Raises:
        DamagedCheckpointError: there is no such record, or its bytes have changed.
    """
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if _short(info.filename) == name:
                if info.CRC == 0:  # written without checksums
                    with archive.open(info) as stream:
                        stream._expected_crc = None  # type: ignore[attr-defined]
                        return stream.read()
                try:
                    return archive.read(info)
                except zipfile.BadZipFile as error:
                    raise DamagedCheckpointError(f"{os.fspath(path)!r} is damaged: {error}") from None
    raise DamagedCheckpointError(f"{os.fspath(path)!r} lacks the record {name!r} that every archive of torch has")


def _short(name: str) -> str:
    return name.partition("/")[2]


def _digest(file: BinaryIO, infos: list[zipfile.ZipInfo], end: int) -> bytes:
    """The SHA-256, in hexadecimal digits, of all bytes that are no record's content, up to the comment's length.

    Args:
        file: the archive.
        infos: its records.
        end: where the record stands that ends it.
    """
    digest, at = hashlib.sha256(), 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        file.seek(at)
        digest.update(file.read(max(0, info.header_offset - at)))
        digest.update(header := file.read(_LOCAL.size))
        name, extra = _LOCAL.unpack(header)[-2:] if len(header) == _LOCAL.size else (0, 0)
        digest.update(file.read(name + extra))
        at = file.tell() + info.file_size
    file.seek(at)
    digest.update(file.read(max(0, end + _END.size - 2 - at)))
    return digest.hexdigest().encode()


def _check_kind(path: str, names: list[str]) -> None:
    short = {_short(name) for name in names}
    if "data.pkl" not in short:
        raise CheckpointError(
            f"{path!r} is no checkpoint: it is a zip archive without the record data.pkl that torch.save writes; it holds "
            f"{', '.join(map(repr, names[:4])) or 'nothing'}"
        )
    if "constants.pkl" in short:
        raise CheckpointError(
            f"{path!r} is no checkpoint, but a program: torch.jit.save wrote it; torch.jit.load reads it"
        )


def _check_seal(path: str, file: BinaryIO, archive: zipfile.ZipFile) -> bool:
    comment = archive.comment
    at = file.seek(0, os.SEEK_END) - _END.size - len(comment)
    file.seek(at)
    magic, *_, length = _END.unpack(file.read(_END.size))
    if magic != _END_MAGIC or length != len(comment):
        _check_end(path, file)
        raise DamagedCheckpointError(f"{path!r} is cut off: bytes are missing at its end")
    if not comment:
        return False
    if comment != SEAL + _digest(file, archive.infolist(), at):
        raise DamagedCheckpointError(
            f"{path!r} was changed after it was written: it does not have the digest in its seal"
        )
    return True


def _check_end(path: str, file: BinaryIO) -> None:
    """See to it that nothing follows the record that ends the archive.

    Raises:
        DamagedCheckpointError: something does.
    """
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        at = whole.rfind(_END_MAGIC)
        while at >= 0:
            *_, start, length = _END.unpack(whole[at : at + _END.size].ljust(_END.size, b"\0"))
            after = len(whole) - at - _END.size - length
            if after > 0 and whole[start : start + 4] == _DIRECTORY_MAGIC:
                raise DamagedCheckpointError(
                    f"{path!r} was changed after it was written: {after} bytes follow its end; the first "
                    f"{len(whole) - after} bytes are the archive"
                )
            at = whole.rfind(_END_MAGIC, 0, at)


def _check_records(path: str, file: BinaryIO, infos: list[zipfile.ZipInfo], sealed: bool) -> None:
    if not sealed and all(info.CRC == 0 for info in infos):
        return  # torch.serialization.set_crc32_options(False)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole, memoryview(whole) as view:

        def broken(info: zipfile.ZipInfo) -> bool:
            header = bytes(view[info.header_offset : info.header_offset + _LOCAL.size])
            if len(header) < _LOCAL.size or header[:4] != b"PK\x03\x04" or info.compress_type != zipfile.ZIP_STORED:
                return True
            name, extra = _LOCAL.unpack(header)[-2:]
            start = info.header_offset + _LOCAL.size + name + extra
            with view[start : start + info.file_size] as data:
                return len(data) != info.file_size or zlib.crc32(data) != info.CRC

        if len(whole) < _SMALL:
            found = [broken(info) for info in infos]
        else:
            with ThreadPoolExecutor(_THREADS) as threads:
                found = list(threads.map(broken, infos))
        damaged = [_short(info.filename) for info, bad in zip(infos, found, strict=True) if bad]
    if damaged:
        more = f" and {len(damaged) - 3} more" if len(damaged) > 3 else ""
        raise DamagedCheckpointError(
            f"{path!r} is damaged: the bytes of {', '.join(damaged[:3])}{more} do not have the checksum that the archive names"
        )
