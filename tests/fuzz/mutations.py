"""Seeded damage to files, of bytes and of what the bytes mean."""

import io
import json
import pathlib
import random
import struct
import warnings
import zipfile

INTEGERS = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63)
DEEP = 900  # levels of nesting: a recursive reader has about a thousand
# What a value of JSON or YAML may be replaced by.
VALUES = (
    *(None, True, False, 0, 1, -1, 2, 7, 1000, 3_000_000, 2**31, 2**63, -(10**18)),
    *(0.5, -0.5, 1e-9, 1e308, float("nan"), float("inf"), "", "x", "1", "a" * 5000),
    *("\u2581", "\0", "../../x", "</s>", [], {}, [1], [[]], ["x"], {"x": 1}, [0] * 99),
)


def mutate(content, name, seed):
    """Returns a damaged copy of the content of a file.

    Args:
        content: bytes.
        name: str, of the file; its ending tells what is in it.
        seed: str. The same seed does the same damage.

    Returns:
        bytes.
    """
    draw = random.Random(seed)
    changes = draw.choice((1, 1, 1, 2, 4))
    for _ in range(changes):
        content = draw.choice(mutators_of(content, name))(content, draw)
    return content


def mutators_of(content, name):
    """Lists the functions that damage a file of this kind."""
    suffix = pathlib.PurePath(name).suffix
    if content[:2] == b"PK":
        return (in_archive, in_archive, in_archive, archive_members, in_bytes)
    if content[:1] in b"{[" and content[-1:] in b"}]\n":
        return (in_json, in_json, in_json, in_json, in_json, in_bytes)
    if suffix == ".safetensors":
        return (in_safetensors, in_safetensors, in_bytes)
    if suffix in (".spm", ".model"):
        return (in_protobuf, in_protobuf, in_bytes)
    if suffix in (".txt", ".yml", ".yaml"):
        return (in_lines, in_lines, in_bytes)
    return (in_bytes,)


def in_bytes(content, draw):
    """Flips bits, sets integers, cuts, inserts, removes or repeats bytes."""
    data = bytearray(content)
    # Headers and directories are at the ends.
    end = draw.choice((len(data), len(data), min(len(data), 600)))
    place = draw.randrange(end) if end else 0
    kind = draw.choice(("bits", "integer", "integer", "cut", "insert", "drop", "copy"))
    if kind == "bits":
        for _ in range(draw.choice((1, 1, 3, 20))):
            if data:
                data[draw.randrange(end)] ^= 1 << draw.randrange(8)
    elif kind == "integer":
        size = draw.choice((1, 2, 4, 8))
        value = draw.choice((*INTEGERS, draw.getrandbits(64))) % 2 ** (8 * size)
        place = draw.choice((place, max(0, len(data) - 1 - draw.randrange(64))))
        data[place : place + size] = value.to_bytes(size, "little")
    elif kind == "cut":
        del data[place:]
    elif kind == "insert":
        data[place:place] = draw.randbytes(draw.choice((1, 4, 100)))
    elif kind == "drop":
        del data[place : place + draw.choice((1, 4, 100))]
    else:
        data[place:place] = data[place : place + draw.choice((1, 8, 1000))]
    return bytes(data)


def in_lines(content, draw):
    """Changes lines of text: drops, repeats, swaps, or sets a value."""
    lines = content.split(b"\n")
    place, second = draw.randrange(len(lines)), draw.randrange(len(lines))
    kind = draw.choice(("drop", "repeat", "swap", "value", "value"))
    if kind == "drop":
        del lines[place]
    elif kind == "repeat":
        lines.insert(place, lines[second])
    elif kind == "swap":
        lines[place], lines[second] = lines[second], lines[place]
    else:
        key, colon, _ = lines[place].partition(b":")
        value = json.dumps(draw.choice(VALUES)).encode()
        lines[place] = key + colon + b" " + value if colon else value
    return b"\n".join(lines)


def in_json(content, draw):
    """Changes one value, name or entry of a JSON tree."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return in_bytes(content, draw)
    parents = [([tree], 0), *_places(tree)]
    parent, key = draw.choice(parents)
    kind = draw.choice(("value", "value", "near", "drop", "rename", "add", "deep"))
    value = parent[key]
    if kind == "near" and isinstance(value, int | float):
        parent[key] = draw.choice((value + 1, value - 1, -value, value * 1000, 0))
    elif kind == "drop" and len(parents) > 1:
        del parent[key]
    elif kind == "rename" and isinstance(parent, dict):
        parent[draw.choice(("x", "", *parent))] = parent.pop(key)
    elif kind == "add" and isinstance(value, list) and value:
        value.insert(draw.randrange(len(value)), draw.choice((*value, *VALUES)))
    elif kind == "add" and isinstance(value, dict):
        value[draw.choice(("x", "", "class_name"))] = draw.choice(VALUES)
    elif kind == "deep":
        marker = '"nested here"'
        parent[key] = json.loads(marker)
        nested = "[" * DEEP + "]" * DEEP
        return json.dumps(parents[0][0][0]).replace(marker, nested, 1).encode()
    else:
        parent[key] = draw.choice(VALUES)
    root = parents[0][0]
    return json.dumps(root[0] if root else None).encode()


def _places(tree):
    """Yields each container with each of its keys."""
    keys = tree if isinstance(tree, dict) else range(len(tree))
    for key in list(keys) if isinstance(tree, dict | list) else ():
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from _places(tree[key])


def in_safetensors(content, draw):
    """Changes the JSON at the start, and corrects its length."""
    [size] = struct.unpack_from("<Q", content) if len(content) >= 8 else [0]
    if size > len(content):
        return in_bytes(content, draw)
    header = in_json(content[8 : 8 + size], draw)
    return struct.pack("<Q", len(header)) + header + content[8 + size :]


def in_protobuf(content, draw):
    """Changes one field of a message, or of a message in it."""
    fields = _fields(content)
    if not fields:
        return in_bytes(content, draw)
    place = draw.randrange(len(fields))
    tag, kind, value = fields[place]
    change = draw.choice(("value", "value", "value", "drop", "repeat", "tag"))
    if change == "drop":
        del fields[place]
    elif change == "repeat":
        fields.insert(draw.randrange(len(fields)), fields[place])
    elif change == "tag":
        fields[place] = (draw.choice((tag + 1, tag + 50, 1)), kind, value)
    elif kind == 2 and _fields(value) and draw.random() < 0.8:
        fields[place] = (tag, kind, in_protobuf(value, draw))
    elif kind == 2:
        text = draw.choice((b"", b"x", b"<s>", b"</s>", b"\xff", value + value))
        fields[place] = (tag, kind, text)
    elif kind == 0:
        number = draw.choice((*INTEGERS, 3, 4, 5, 6, value + 1))
        fields[place] = (tag, kind, number)
    else:
        numbers = (0.0, -1e30, 1e30, float("nan"), float("inf"))
        fields[place] = (tag, kind, struct.pack("<f", draw.choice(numbers)))
    return b"".join(_field(*field) for field in fields)


def _fields(data):
    """Splits a message into number, type and value of each field; or []."""
    fields, place = [], 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(data, place)
        elif kind == 2:
            size, place = _varint(data, place)
            value, place = data[place : place + size], place + size
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
            value, place = data[place : place + size], place + size
        else:
            return []
        fields.append((key >> 3, kind, value))
    return fields if place == len(data) and all(f[0] for f in fields) else []


def _varint(data, place):
    value, shift = 0, 0
    while place < len(data) and shift < 70:
        byte = data[place]
        place, value = place + 1, value | (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    return value, place


def _field(tag, kind, value):
    head = _as_varint(tag << 3 | kind)
    if kind == 0:
        return head + _as_varint(value)
    return head + (_as_varint(len(value)) if kind == 2 else b"") + value


def _as_varint(value):
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def in_archive(content, draw):
    """Changes the content of one member of a zip file."""
    members = _members(content)
    if not members:
        return in_bytes(content, draw)
    place = draw.randrange(len(members))
    name, data = members[place]
    if name.endswith("data.pkl") or name.endswith(".npy"):
        data = in_bytes(data, draw)
    else:
        data = draw.choice(mutators_of(data, name))(data, draw)
    members[place] = (name, data)
    return _as_archive(members, draw)


def archive_members(content, draw):
    """Drops, repeats, renames or compresses members of a zip file."""
    members = _members(content)
    if not members:
        return in_bytes(content, draw)
    place, partner = draw.randrange(len(members)), draw.randrange(len(members))
    kind = draw.choice(("drop", "repeat", "rename", "swap", "compress", "bomb"))
    if kind == "drop":
        del members[place]
    elif kind == "repeat":
        members.append(members[place])
    elif kind == "rename":
        name = draw.choice(("x", "../x", "/x", "", members[partner][0]))
        members[place] = (name, members[place][1])
    elif kind == "swap":
        first, second = members[place], members[partner]
        members[place], members[partner] = (first[0], second[1]), (second[0], first[1])
    elif kind == "bomb":
        members[place] = (members[place][0], bytes(2_000_000))
    compression = zipfile.ZIP_DEFLATED if kind in ("compress", "bomb") else None
    return _as_archive(members, draw, compression)


def _members(content):
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return [(m.filename, archive.read(m)) for m in archive.infolist()]
    except Exception:  # damaged before
        return []


def _as_archive(members, draw, compression=None):
    file = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w") as archive:
        warnings.simplefilter("ignore")  # of names that exist twice
        for name, data in members:
            archive.writestr(zipfile.ZipInfo(name or "x"), data, compression)
    return file.getvalue()
