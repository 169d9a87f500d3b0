"""Read published models into our blocks and write them back: BERT, GPT-2, Llama, Mistral, Qwen2 and Qwen3.

A checkpoint is a folder that contains `config.json` and the weights, either in `model.safetensors` or in
several files that `model.safetensors.index.json` lists. Only safetensors files are read. Nothing is
unpickled, so no file can run code. If files do not fit, an error says how, and no model is returned.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from mha_lib._checks import check_type, refusal, wrong_type
from mha_lib.models import _families
from mha_lib.models._families import ACTIVATIONS, FAMILIES, UNSUPPORTED, Family, Model
from mha_lib.models.language_models import GPT2, Bert, Llama
from mha_lib.models.rotary_scaling import RotaryScaling

_Entries: TypeAlias = Mapping[str, Any]  # of a configuration, or tensors by their names
_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_INDEX = "model.safetensors.index.json"
_HEADS = ("cls.", "lm_head.")  # prefixes of output layers
_DTYPES = ("F64", "F32", "F16", "BF16")


def load_checkpoint(
    source: str | Path,
    *,
    revision: str | None = None,
    sha256: str | Mapping[str, str] | None = None,
) -> Bert | GPT2 | Llama:
    """Read a model of the BERT, GPT-2, Llama, Mistral, Qwen2 or Qwen3 family from its files.

    The network is used only if `revision` is given, and `source` is then a name on the Hugging Face hub.
    BERT's classifier for pairs of sentences is left out. Files of a bare `BertModel` or `LlamaModel` give a
    model with `head=False`, whose logits are None. The model is in eval mode, its parameters have the dtype
    of the file, and Mistral and Qwen models are of class `Llama`. Dropout is not carried over. If rotary
    positions are scaled to longer texts, `max_len` is the scaled length. Relative positions, windows in only
    some layers, and quantized weights are not supported.

    A file whose numbers are damaged can still be read; only `sha256` detects the damage.

    Args:
        source: a folder; or, with `revision`, a name on the hub such as "openai-community/gpt2", which
            requires the package huggingface_hub.
        revision: a commit, 40 hexadecimal digits, which is compared with that of the download; or a branch
            such as "main", which may change.
        sha256: the digest of `model.safetensors`, or a dict from file names to digests, which must name every
            weights file and may name others. Digests are compared before any of these files is parsed.

    Raises:
        TypeError: an argument has the wrong type.
        FileNotFoundError: there is no such folder, or a file of the checkpoint is missing.
        ValueError: a digest differs, a file is damaged or has an unsafe name, the family or an option is not
            supported, or tensors are missing, left over or of the wrong shape. The message says which.

    Example:
        >>> import tempfile
        >>> from mha_lib import GPT2
        >>> model = GPT2(7, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2, max_len=5).eval()
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(model, folder)
        ...     same = load_checkpoint(folder)
        >>> tokens = torch.tensor([[1, 2, 3, 0]])
        >>> torch.equal(same(tokens)[1], model(tokens)[1])
        True
    """
    digests = _check_digests(sha256)
    folder = _find_folder(source, revision)
    for name, digest in digests.items():
        with _existing(folder, name).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest.lower():
            raise ValueError(f"sha256 of {name} must be {digest}, got {found}")
    config = _read_json(folder, _CONFIG)
    kind = config.get("model_type")
    why = f" ({UNSUPPORTED[kind]})" if kind in [*UNSUPPORTED] else ""
    family: Family = _one_of(FAMILIES, kind, "model_type", why)
    with ExitStack() as opened:
        stored: dict[str, Any] = {}
        for name, listed in _weight_files(folder).items():
            if sha256 is not None and name not in digests:
                rule = "name every weights file"
                raise refusal("sha256", rule, f"none for {name}")
            stored |= _open(opened, _existing(folder, name), listed)
        # In files of a model without output layers, names have no prefix.
        bare = not any(name.startswith(family.prefix) for name in stored)
        head = not bare or _has_head(family, config, stored)
        model = _build(family, config, head=head)
        tensors = _read_tensors(family, model, _with_todays_names(family, stored, bare))
    # The model was built without storage, so each parameter becomes one of these tensors.
    model.load_state_dict(tensors, assign=True)
    _families.note_left_out(model, stored)
    return model.eval()


def save_checkpoint(model: Bert | GPT2 | Llama, folder: str | Path) -> None:
    """Write a model in its family's format, which `load_checkpoint` and HuggingFace's transformers can read.

    The files are `config.json` and `model.safetensors`; dropout rates are not saved. A missing `folder` is
    created. A warning names what is not written because `load_checkpoint` left it out, such as BERT's pooler.

    Raises:
        TypeError: `model` is of the wrong class, or `folder` is not a path.
        ValueError: the model was changed in a way that this format cannot describe.

    Example:
        >>> import tempfile
        >>> from mha_lib import GPT2
        >>> model = GPT2(7, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2, max_len=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(model, folder)
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['config.json', 'model.safetensors']
    """
    save_file = _safetensors().torch.save_file
    kinds = [name for name in FAMILIES if FAMILIES[name].model is type(model)]
    if not kinds:
        raise wrong_type("model", "a Bert, GPT2 or Llama", model)
    _check_path("folder", folder)
    _families.warn_left_out(model)
    described = ((kind, _describe(FAMILIES[kind], model)) for kind in kinds)
    kind, entries = next((pair for pair in described if pair[1]), ("", {}))
    if not entries:
        rule = f"be as {type(model).__name__} builds it"
        raise refusal("model", rule, "one whose parts were changed")
    family = FAMILIES[kind]
    architecture, prefix = family.architecture, ""
    if not model.head:  # names of a bare model have no prefix
        architecture, prefix = re.sub("For.*", "Model", architecture), family.prefix
    config: dict[str, Any] = {"model_type": kind, "architectures": [architecture]}
    config |= {"bos_token_id": None, "eos_token_id": None, **entries}
    parameters = {name: tensor.detach() for name, tensor in model.named_parameters()}
    tensors = {}
    for name, parts in _names_in_files(family, model).items():
        rows = torch.cat([parameters[part] for part in parts])
        tensors[name.removeprefix(prefix)] = _swap(family, name, rows).contiguous()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / _CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _names_in_files(family: Family, model: Model) -> dict[str, list[str]]:
    """Map each tensor that the files must contain to our parameters whose rows it consists of."""
    names, blocks = dict(family.layers), "encoder.blocks"
    for i in range(len(model.encoder.blocks)):
        for ours, theirs in family.block.items():
            names[f"{blocks}.{i}.{ours}"] = f"{family.layers[blocks]}.{i}.{theirs}"
    parameters = dict(model.named_parameters())
    found: dict[str, list[str]] = {}
    for ours, theirs in names.items():
        for kind in ("", ".weight", ".bias"):
            if ours + kind in parameters:
                found.setdefault(theirs + kind, []).append(ours + kind)
    return found


def _swap(family: Family, name: str, tensor: Tensor) -> Tensor:
    """Transpose a matrix that the family stores as (in, out); a second call undoes this."""
    layer = name.split(".")[-2]
    return tensor.mT if layer in family.transposed and tensor.ndim == 2 else tensor


def _read_tensors(family: Family, model: Model, stored: _Entries) -> dict[str, Tensor]:
    """Read the tensors of the model by our names, after comparing names, shapes and dtypes."""
    shapes = {name: tensor.shape for name, tensor in model.named_parameters()}
    wanted = _names_in_files(family, model)
    extra = [
        name
        for name in stored.keys() - wanted.keys() - family.copies.keys()
        if not re.fullmatch(family.unused, name)
    ]
    wrong = []
    for name in wanted.keys() & stored.keys():
        parts = [torch.empty(shapes[part], device="meta") for part in wanted[name]]
        shape = tuple(_swap(family, name, torch.cat(parts)).shape)
        found = stored[name].get_shape()
        if shape != tuple(found):
            wrong.append(f"{name} has shape {tuple(found)} instead of {shape}")
    _refuse_different(
        "the weights do not fit config.json",
        {"missing": wanted.keys() - stored.keys(), "unexpected": extra, "wrong": wrong},
    )
    dtypes = {stored[name].get_dtype() for name in wanted}
    if len(dtypes) != 1 or not dtypes <= set(_DTYPES):
        rule = f"all be of one of the dtypes {', '.join(_DTYPES)}"
        raise refusal("the weights", rule, ", ".join(sorted(dtypes)))
    for copy, original in family.copies.items():
        repeated = copy in stored and copy not in wanted
        if repeated and not torch.equal(stored[copy][:], stored[original][:]):
            rule = f"equal {original}, which it repeats in this model"
            raise refusal(copy, rule, "other numbers")
    tensors: dict[str, Tensor] = {}
    for name, targets in wanted.items():
        rows = _swap(family, name, stored[name][:])
        pieces = rows.split([shapes[target][0] for target in targets])
        for target, piece in zip(targets, pieces, strict=True):
            # The tensor may be a view of the file, which other programs may change.
            tensors[target] = piece.clone(memory_format=torch.contiguous_format)
    return tensors


def _refuse_different(what: str, lists: Mapping[str, Collection[str]]) -> None:
    """Raise unless all lists are empty; the message quotes the first name of each."""
    parts = []
    for kind, names in lists.items():
        some = ", ".join(sorted(names)[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        if names:
            parts.append(f"{kind}: {some}{more}")
    if parts:
        raise ValueError(f"{what}; {'; '.join(parts)}")


def _with_todays_names(family: Family, stored: _Entries, bare: bool) -> dict[str, Any]:
    """Rename tensors that have different names in older files and in files without output layers."""
    renamed: dict[str, Any] = {}
    for old, tensor in stored.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", old))
        if bare and not name.startswith(_HEADS):
            name = family.prefix + name
        if name in renamed:
            raise ValueError(f"{name} must occur once, got it under two names")
        renamed[name] = tensor
    return renamed


def _has_head(family: Family, config: _Entries, stored: Collection[str]) -> bool:
    """Whether the model has a head: the files contain one, or the embedding is its output matrix."""
    if family.model is GPT2 or any(name.startswith(_HEADS) for name in stored):
        return True
    tied: bool = {**family.defaults, **config}.get("tie_word_embeddings", True)
    return tied and family.model is not Bert


def _one_of(table: _Entries, key: Any, entry: str, why: str = "") -> Any:
    """Look up the meaning of an entry of the configuration; raise if the table does not contain it."""
    if key not in tuple(table):  # the key may be of any type, even unhashable
        rule = f"be one of {', '.join(table)}"
        raise refusal(f"{entry} in {_CONFIG}", rule, f"{key!r}{why}")
    return table[key]


def _build(family: Family, config: _Entries, *, head: bool) -> Model:
    """Build the model that a configuration describes, on the meta device: shapes without numbers."""
    rotary = _rotary_of(config)
    options = {**family.defaults, **config, **rotary}
    missing = {key for key in family.settings.values() if key not in options}
    other = [
        f"{key} is {options[key]!r}, supported is {value!r}"
        for key, value in {**family.only, "quantization_config": None}.items()
        if options.get(key, value) != value
    ]
    rule = f"{_CONFIG} must describe a {family.model.__name__}"
    _refuse_different(rule, {"missing": missing, "not supported": other})
    arguments = {name: options[key] for name, key in family.settings.items()}
    arguments |= {**family.fixed} if head else {**family.fixed, "head": False}
    if "activation" in arguments:
        entry, name = family.settings["activation"], arguments["activation"]
        arguments["activation"] = _one_of(ACTIVATIONS, name, entry)
    try:
        if family.model is GPT2 and arguments["hidden_dim"] is None:
            arguments["hidden_dim"] = 4 * arguments["embed_dim"]
        if arguments.get("window") is not None:  # files count the token itself
            arguments["window"] = (arguments["window"] - 1, 0)
        if family.model is Llama:
            scaling = _scaling_of(rotary, arguments["max_len"])
            arguments["scaling"] = scaling
            if scaling is not None and scaling.trained_len == arguments["max_len"]:
                arguments["max_len"] = int(arguments["max_len"] * scaling.factor)
        return family.model(**arguments, device="meta")
    except (TypeError, ValueError) as error:
        raise ValueError(f"{rule}: {error}") from error


def _rotary_of(config: _Entries) -> dict[str, Any]:
    """The settings of rotary positions, which include the base in files of transformers 5."""
    for name in ("rope_parameters", "rope_scaling"):
        found = config.get(name) or {}
        if not isinstance(found, dict):
            raise refusal(f"{name} in {_CONFIG}", "be a dict", repr(found))
        if found:
            return found
    return {}


def _scaling_of(rotary: _Entries, max_len: int) -> RotaryScaling | None:
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind == "default":
        return None
    names = _one_of(_families.SCALING, kind, "rope_type")
    ours = {theirs: name for name, theirs in names.items()}
    rest = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
    given = {
        key: value
        for key, value in rotary.items()
        # By default, YaRN's ramp starts and ends at whole columns.
        if value is not None and key not in rest and (key, value) != ("truncate", True)
    }
    unknown = [f"{key} of rotary positions" for key in given.keys() - ours.keys()]
    _refuse_different("they cannot be scaled", {"not supported": unknown})
    arguments = {ours[key]: value for key, value in given.items()}
    stated_len = arguments.pop("trained_len", max_len)
    trained_len = {"linear": None, "dynamic": max_len}.get(kind, stated_len)
    return RotaryScaling(kind, trained_len=trained_len, **arguments)


def _describe(family: Family, model: Any) -> dict[str, Any]:
    """The configuration of a model; empty if a model built from it would differ."""
    try:
        block = model.encoder.blocks[0]
        attention, hidden = block.self_attention, block.feed_forward
        found = {
            "vocab_size": model.embedding.num_embeddings,
            "embed_dim": attention.embed_dim,
            "num_heads": attention.num_heads,
            "num_kv_heads": attention.num_kv_heads,
            "hidden_dim": hidden.up_proj.out_features,
            "num_layers": len(model.encoder.blocks),
            "max_len": model.max_len,
            "layer_norm_eps": block.self_attention_norm.eps,
            "tied": model.head and model.output is None,
        }
        if family.model is Bert:
            found["num_segments"] = model.segment_embedding.num_embeddings
        if family.model is Llama:
            found["base"] = attention.rotary.base
            found["head_dim"], window = attention.head_dim, attention.window
            found["attention_bias"] = attention.out_proj.bias is not None
            found["mlp_bias"] = hidden.up_proj.bias is not None
            found["window"] = None if window is None else window[0] + 1
        else:
            names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
            found["activation"] = names[hidden.activation]
        config = {key: found[name] for name, key in family.settings.items()}
        scaling = attention.rotary.scaling if family.model is Llama else None
        if scaling is not None:
            pairs = _families.SCALING[scaling.kind].items()
            entries = {key: getattr(scaling, name) for name, key in pairs}
            config["rope_scaling"] = {"rope_type": scaling.kind, **entries}
            if scaling.kind == "dynamic":
                config["max_position_embeddings"] = scaling.trained_len
        same = _looks(model) == _looks(_build(family, config, head=model.head))
    except (AttributeError, KeyError, TypeError, ValueError):
        return {}
    return config if same else {}


def _looks(model: Model) -> tuple[str, dict[str, Any]]:
    """Describe a model by all except its numbers and dropout: its class, settings and shapes."""
    text = re.sub(r"Dropout\(p=[^,]*", "Dropout(", repr(model))
    return text, {name: tensor.shape for name, tensor in model.state_dict().items()}


def _find_folder(source: object, revision: str | None) -> Path:
    """Return the folder of a checkpoint; download it if a revision is given."""
    _check_path("source", source)
    if revision is None:
        folder = Path(str(source))
        if not folder.is_dir():
            rule = "be a folder, or, with a revision, a name on the hub"
            raise FileNotFoundError(f"source must {rule}, got {str(source)!r}")
        return folder
    check_type("revision", revision, str)
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(source)):
        rule = "be a name on the hub where revision is given"
        raise refusal("source", rule, f"{str(source)!r}")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError("revision needs the package huggingface_hub") from error
    wanted = [_CONFIG, _WEIGHTS, _INDEX, "model-*.safetensors"]
    found = snapshot_download(str(source), revision=revision, allow_patterns=wanted)
    folder = Path(found)
    if re.fullmatch("[0-9a-f]{40}", revision) and folder.name != revision:
        raise ValueError(f"revision must be {revision}, got {folder.name}")
    return folder


def _weight_files(folder: Path) -> dict[str, set[str] | None]:
    """Map each weights file to the tensors that the index says it contains, or None without an index."""
    if (folder / _WEIGHTS).is_file():
        return {_WEIGHTS: None}
    if not (folder / _INDEX).is_file():
        kinds = (".bin", ".pt", ".pth", ".ckpt")
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in kinds)
        why = f"; {', '.join(pickled)}: unpickling may run code" if pickled else ""
        raise FileNotFoundError(f"{_WEIGHTS} must be in {folder}{why}")
    places = _read_json(folder, _INDEX).get("weight_map")
    if not isinstance(places, dict) or {*map(type, places.values())} != {str}:
        rule = "be a dict of file names"
        raise refusal(f"weight_map in {_INDEX}", rule, f"{places!r}")
    files: dict[str, set[str] | None] = {}
    for tensor, name in places.items():
        files[name] = {tensor, *(files.get(name) or ())}
    return files


def _open(opened: ExitStack, path: Path, listed: set[str] | None) -> dict[str, Any]:
    """The tensors in a file, which the index lists; so far, only their shapes and dtypes have been read."""
    library = _safetensors()
    try:
        file: Any = opened.enter_context(library.safe_open(path, framework="pt"))
    except (library.SafetensorError, OSError) as error:
        rule = "be a safetensors file"
        raise refusal(path.name, rule, f"a damaged or wrong file: {error}") from error
    found = set(file.keys())
    if listed is not None:
        what = f"{path.name} does not hold what {_INDEX} says"
        lists = {"missing": listed - found, "unexpected": found - listed}
        _refuse_different(what, lists)
    return {name: file.get_slice(name) for name in found}


def _safetensors() -> Any:
    """Import the package that reads and writes the files; nothing else in the library needs it."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError("checkpoints need the package safetensors") from error
    return safetensors


def _existing(folder: Path, name: str) -> Path:
    """The path of a file directly in `folder`; its name may come from a download and is not trusted."""
    if Path(name).name != name or "\\" in name:
        raise refusal("files of a checkpoint", "be named without a folder", f"{name!r}")
    if not (folder / name).is_file():
        raise FileNotFoundError(f"{name} must be in {folder}")
    return folder / name


def _read_json(folder: Path, name: str) -> dict[str, Any]:
    text = _existing(folder, name).read_bytes()
    try:
        content = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{name} must be JSON, got a damaged file: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name} must hold a dict, got {content!r}")
    return content


def _check_path(name: str, value: object) -> None:
    if not isinstance(value, Path):
        check_type(name, value, str)


def _check_digests(sha256: object) -> dict[str, str]:
    if sha256 is None:
        return {}
    digests = {_WEIGHTS: sha256} if isinstance(sha256, str) else sha256
    if not isinstance(digests, Mapping):
        raise wrong_type("sha256", "a str or a dict", sha256)
    for name, digest in digests.items():
        check_type("a name in sha256", name, str)
        check_type("a digest in sha256", digest, str)
        if not re.fullmatch("[0-9a-fA-F]{64}", digest):
            rule = "have 64 hexadecimal digits"
            raise refusal("sha256", rule, f"{digest!r} for {name}")
    return dict(digests)
