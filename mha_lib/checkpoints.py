"""Published models of three families, BERT, GPT-2 and Llama: from their files into our blocks, and back.

A checkpoint is a folder with `config.json` and the weights, in `model.safetensors` or in several files that
`model.safetensors.index.json` lists. Only safetensors files are read: nothing is unpickled, so no file can
run code. Files that do not fit are refused with what differs, and nothing half loaded is returned.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mha_lib._checks import check_type
from mha_lib._families import ACTIVATIONS, FAMILIES, Family, Model
from mha_lib.language_models import GPT2, Bert, Llama

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_INDEX = "model.safetensors.index.json"
_DTYPES = ("F64", "F32", "F16", "BF16")


def load_checkpoint(
    source: str | Path,
    *,
    revision: str | None = None,
    sha256: str | Mapping[str, str] | None = None,
) -> Bert | GPT2 | Llama:
    """Read a model of the BERT, GPT-2 or Llama family from its files.

    The network is used only if `revision` is given: then `source` is a name on the Hugging Face hub. Of BERT,
    the classifier for pairs of sentences is left out. Dropout is not carried over. Scaled rotary positions,
    relative positions, biases in a Llama and quantized weights are refused.

    Damage inside the numbers of a file leaves the file readable; only `sha256` finds it.

    Args:
        source: a folder; or, with `revision`, a name on the hub such as "openai-community/gpt2", which needs
            the package huggingface_hub.
        revision: a commit, 40 hexadecimal digits, which what was downloaded must belong to; or a branch such
            as "main", which may change.
        sha256: the digest of `model.safetensors`, or a dict from file names to digests, which must name every
            file of weights and may name others. Digests are compared before any of these files is parsed.

    Returns:
        A `Bert`, `GPT2` or `Llama` in eval mode, with parameters of the dtype of the file.

    Raises:
        TypeError: an argument is of the wrong type.
        FileNotFoundError: there is no such folder, or a file of the checkpoint is missing.
        ValueError: a digest differs, a file is damaged or has an unsafe name, the family or an option is not
            supported, or tensors are missing, left over or of another shape. The message says which.

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
    family = _family_of(config)
    model = _build(family, config)
    with ExitStack() as opened:
        stored: dict[str, Any] = {}
        for name, held in _weight_files(folder).items():
            if sha256 is not None and name not in digests:
                raise ValueError(
                    f"sha256 must name every file of weights, got none for {name}"
                )
            stored |= _open(opened, _existing(folder, name), held)
        tensors = _read(family, model, _with_todays_names(family, stored))
    # The model was built without storage, so each parameter becomes one of these tensors.
    model.load_state_dict(tensors, assign=True)
    return model.eval()


def save_checkpoint(model: Bert | GPT2 | Llama, folder: str | Path) -> None:
    """Write a model as the files of its family, which `load_checkpoint` and HuggingFace's transformers read.

    Args:
        model: a `Bert`, `GPT2` or `Llama`. Its dropout is not written.
        folder: where `config.json` and `model.safetensors` are written; made if it does not exist.

    Raises:
        TypeError: `model` is of another class, or `folder` is not a path.
        ValueError: a part of the model was changed, so that the files of the family cannot describe it.

    Example:
        >>> import tempfile
        >>> from mha_lib import GPT2
        >>> model = GPT2(7, embed_dim=6, num_heads=3, hidden_dim=24, num_layers=2, max_len=5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(model, folder)
        ...     sorted(path.name for path in Path(folder).iterdir())
        ['config.json', 'model.safetensors']
    """
    from safetensors.torch import save_file

    kinds = {family.model: name for name, family in FAMILIES.items()}
    if type(model) not in kinds:
        raise TypeError(
            f"model must be a Bert, GPT2 or Llama, got {type(model).__name__}"
        )
    _check_path("folder", folder)
    family = FAMILIES[kinds[type(model)]]
    config: dict[str, Any] = {"model_type": kinds[type(model)]}
    config |= {"architectures": [family.architecture]}
    config |= {"bos_token_id": None, "eos_token_id": None, **_describe(family, model)}
    own = {name: tensor.detach() for name, tensor in model.named_parameters()}
    tensors = {}
    for name, parts in _names(family, model).items():
        rows = torch.cat([own[part] for part in parts])
        tensors[name] = _swap(family, name, rows).contiguous()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    text = json.dumps(config, indent=2) + "\n"
    (folder / _CONFIG).write_text(text, encoding="utf-8")


def _names(family: Family, model: Model) -> dict[str, list[str]]:
    """Each tensor that the files must hold -> the parameters of ours whose rows it consists of."""
    pairs = dict(family.names)
    for i in range(len(model.encoder.blocks)):
        for theirs, ours in family.block.items():
            parts = (f"encoder.blocks.{i}.{part}" for part in ours.split())
            pairs[f"{family.blocks}.{i}.{theirs}"] = " ".join(parts)
    own = dict(model.named_parameters())
    found = {}
    for theirs, ours in pairs.items():
        for kind in ("", ".weight", ".bias"):
            parameters = [part + kind for part in ours.split()]
            if all(name in own for name in parameters):
                found[theirs + kind] = parameters
    return found


def _swap(family: Family, name: str, tensor: Tensor) -> Tensor:
    """Transpose the matrices that the family stores as (in, out); undone by a second call."""
    layer = name.split(".")[-2]
    return tensor.mT if layer in family.transposed and tensor.ndim == 2 else tensor


def _read(family: Family, model: Model, stored: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the tensors of the model by our names, after names, shapes and dtypes were compared."""
    own = {name: tensor.shape for name, tensor in model.named_parameters()}
    wanted = _names(family, model)
    extra = [
        name
        for name in stored.keys() - wanted.keys() - family.copies.keys()
        if not re.fullmatch(family.unused, name)
    ]
    wrong = []
    for name in wanted.keys() & stored.keys():
        parts = [torch.empty(own[part], device="meta") for part in wanted[name]]
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
        raise ValueError(
            f"the weights must all be of one of the dtypes {', '.join(_DTYPES)}, "
            f"got {', '.join(sorted(dtypes))}"
        )
    for copy, original in family.copies.items():
        repeated = copy in stored and copy not in wanted
        if repeated and not torch.equal(stored[copy][:], stored[original][:]):
            raise ValueError(
                f"{copy} must equal {original}, which it repeats in this model, got other numbers"
            )
    tensors: dict[str, Tensor] = {}
    for name, targets in wanted.items():
        rows = _swap(family, name, stored[name][:])
        pieces = rows.split([own[target][0] for target in targets])
        for target, piece in zip(targets, pieces, strict=True):
            # What was read may be a view of the file, which others may change.
            tensors[target] = piece.clone(memory_format=torch.contiguous_format)
    return tensors


def _refuse_different(what: str, lists: Mapping[str, Collection[str]]) -> None:
    """Raise if one of the lists holds names; the message has the first of each."""
    parts = []
    for kind, names in lists.items():
        some = ", ".join(sorted(names)[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        if names:
            parts.append(f"{kind}: {some}{more}")
    if parts:
        raise ValueError(f"{what}; {'; '.join(parts)}")


def _with_todays_names(family: Family, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Rename what older files, and files of models without output layers, name differently."""
    bare = not any(name.startswith(family.prefix) for name in stored)
    renamed: dict[str, Any] = {}
    for old, tensor in stored.items():
        name = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", old))
        if bare and not name.startswith(("cls.", "lm_head.")):
            name = family.prefix + name
        if name in renamed:
            raise ValueError(f"{name} must be there once, got it under two names")
        renamed[name] = tensor
    return renamed


def _family_of(config: Mapping[str, Any]) -> Family:
    model_type = config.get("model_type")
    if model_type not in tuple(FAMILIES):
        raise ValueError(
            f"model_type in {_CONFIG} must be one of {', '.join(FAMILIES)}, got {model_type!r}"
        )
    return FAMILIES[model_type]


def _build(family: Family, config: Mapping[str, Any]) -> Model:
    """Build the model that a configuration describes on the meta device: shapes without numbers."""
    # Transformers 5 writes the settings of rotary positions as an entry of their own.
    rotary = config.get("rope_parameters") or {}
    if not isinstance(rotary, dict):
        raise ValueError(f"rope_parameters in {_CONFIG} must be a dict, got {rotary!r}")
    options = {**family.defaults, **config, **rotary}
    only = {**family.only, "quantization_config": None}
    missing = {key for key in family.settings.values() if key not in options}
    other = [
        f"{key} is {options[key]!r}, supported is {value!r}"
        for key, value in only.items()
        if options.get(key, value) != value
    ]
    lists = {"missing": missing, "not supported": other}
    _refuse_different(f"{_CONFIG} must describe a {family.model.__name__}", lists)
    arguments = {name: options[key] for name, key in family.settings.items()}
    if "activation" in arguments:
        name = arguments["activation"]
        if name not in tuple(ACTIVATIONS):
            raise ValueError(
                f"{family.settings['activation']} in {_CONFIG} must be one of "
                f"{', '.join(ACTIVATIONS)}, got {name!r}"
            )
        arguments["activation"] = ACTIVATIONS[name]
    try:
        if family.model is GPT2 and arguments["hidden_dim"] is None:
            arguments["hidden_dim"] = 4 * arguments["embed_dim"]
        model = family.model(**arguments, device="meta")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{_CONFIG} must describe a {family.model.__name__}: {error}"
        ) from error
    head_dim = arguments["embed_dim"] // arguments["num_heads"]
    if options.get("head_dim") not in (None, head_dim):
        raise ValueError(
            f"head_dim in {_CONFIG} must be {head_dim}, got {options['head_dim']}"
        )
    return model


def _describe(family: Family, model: Any) -> dict[str, Any]:
    """The configuration of a model; refused if a model built from it would be another one."""
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
            "tied": model.output is None,
        }
        if family.model is Bert:
            found["num_segments"] = model.segment_embedding.num_embeddings
        if family.model is Llama:
            found["base"] = attention.rotary.base
        else:
            names = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
            found["activation"] = names[hidden.activation]
        config = {key: found[name] for name, key in family.settings.items()}
        same = _looks(model) == _looks(_build(family, config))
    except (AttributeError, KeyError, ValueError):
        same = False
    if not same:
        raise ValueError(
            f"model must be as {family.model.__name__} builds it, got one whose parts were changed"
        )
    return config


def _looks(model: Model) -> tuple[str, dict[str, Any]]:
    """What a model is, apart from its numbers: its text shows all settings; dropout does not count."""
    text = re.sub(r"Dropout\(p=[^,]*", "Dropout(", repr(model))
    return text, {name: tensor.shape for name, tensor in model.state_dict().items()}


def _find_folder(source: object, revision: str | None) -> Path:
    """The folder of a checkpoint; downloads it if a revision is given."""
    _check_path("source", source)
    if revision is None:
        folder = Path(str(source))
        if not folder.is_dir():
            raise FileNotFoundError(
                f"source must be a folder, or, with a revision, a name on the hub, got {str(source)!r}"
            )
        return folder
    check_type("revision", revision, str)
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", str(source)):
        raise ValueError(
            f"source must be a name on the hub where revision is given, got {str(source)!r}"
        )
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ImportError("revision needs the package huggingface_hub") from error
    wanted = [_CONFIG, _WEIGHTS, _INDEX, "model-*.safetensors"]
    folder = Path(
        snapshot_download(str(source), revision=revision, allow_patterns=wanted)
    )
    if re.fullmatch("[0-9a-f]{40}", revision) and folder.name != revision:
        raise ValueError(f"revision must be {revision}, got {folder.name}")
    return folder


def _weight_files(folder: Path) -> dict[str, set[str] | None]:
    """The files of weights, each with the tensors that the index says are in it; None without an index."""
    if (folder / _WEIGHTS).is_file():
        return {_WEIGHTS: None}
    if not (folder / _INDEX).is_file():
        kinds = (".bin", ".pt", ".pth", ".ckpt")
        pickled = sorted(path.name for path in folder.iterdir() if path.suffix in kinds)
        why = f"; {', '.join(pickled)}: unpickling may run code" if pickled else ""
        raise FileNotFoundError(f"{_WEIGHTS} must be in {folder}{why}")
    places = _read_json(folder, _INDEX).get("weight_map")
    named = isinstance(places, dict) and all(
        isinstance(n, str) for n in places.values()
    )
    if not named or not places:
        raise ValueError(
            f"weight_map in {_INDEX} must be a dict of file names, got {places!r}"
        )
    files: dict[str, set[str] | None] = {}
    for tensor, name in places.items():
        files[name] = {tensor, *(files.get(name) or ())}
    return files


def _open(opened: ExitStack, path: Path, held: set[str] | None) -> dict[str, Any]:
    """What a file holds: tensors of which only shape and dtype are read yet."""
    from safetensors import SafetensorError, safe_open

    try:
        file: Any = opened.enter_context(safe_open(path, framework="pt"))
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{path.name} must be a safetensors file, got a damaged or other one: {error}"
        ) from error
    found = set(file.keys())
    if held is not None:
        what = f"{path.name} does not hold what {_INDEX} says"
        lists = {"missing": held - found, "unexpected": found - held}
        _refuse_different(what, lists)
    return {name: file.get_slice(name) for name in found}


def _existing(folder: Path, name: str) -> Path:
    """The path of a file directly in `folder`; names come from files that others wrote."""
    if Path(name).name != name or "\\" in name:
        raise ValueError(
            f"files of a checkpoint must be named without a folder, got {name!r}"
        )
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
        raise TypeError(
            f"sha256 must be a str or a dict, got {type(sha256).__name__}: {sha256!r}"
        )
    for name, digest in digests.items():
        check_type("a name in sha256", name, str)
        check_type("a digest in sha256", digest, str)
        if not re.fullmatch("[0-9a-fA-F]{64}", digest):
            raise ValueError(
                f"sha256 must have 64 hexadecimal digits, got {digest!r} for {name}"
            )
    return dict(digests)
