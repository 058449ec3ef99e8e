"""Checkpoints of every form, and each way in which one can be broken."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config as HuggingFaceConfig
from transformers import GPT2LMHeadModel

from attnspec.reference.weights import WeightsError, load, locate
from attnspec.spec import GPT2Config

SIZES: dict[str, Any] = {
    "vocab_size": 53,
    "n_positions": 29,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 1,
}
TOKENS = "transformer.wte.weight"
FIRST = "transformer.h.0.attn.c_attn.weight"
Tensors = dict[str, torch.Tensor]


def save(folder: Path, **switches: Any) -> Tensors:
    """Save a small model as transformers does, and return its parameters."""
    torch.manual_seed(0)
    config = HuggingFaceConfig(**(SIZES | switches), bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    model.save_pretrained(folder)
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensors]:
    """Save one checkpoint that no test changes."""
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, save(folder)


@pytest.fixture
def folder(original: tuple[Path, Tensors], tmp_path: Path) -> Path:
    """Copy the checkpoint for a test that changes it."""
    return Path(shutil.copytree(original[0], tmp_path / "copy"))


def rewrite(folder: Path, change: Callable[[Tensors], Tensors | None]) -> Path:
    """Change the tensors of a checkpoint."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    changed = change(tensors)
    save_file(tensors if changed is None else changed, path)
    return folder


def pickled(folder: Path, tensors: Any) -> Path:
    """Replace the weights by `pytorch_model.bin`."""
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    return folder


def assert_same(loaded: Tensors, expected: Tensors) -> None:
    """Compare bit for bit, without the tied head."""
    assert loaded.keys() == expected.keys() - {"lm_head.weight"}
    assert all(torch.equal(loaded[name], expected[name]) for name in loaded)


def test_a_folder_and_a_file_give_the_same(original: tuple[Path, Tensors]) -> None:
    folder, expected = original
    for source in (folder, str(folder), folder / "model.safetensors"):
        config, weights = load(source)
        assert config == GPT2Config(**SIZES)
        assert_same(weights, expected)
    assert locate(folder) == folder / "model.safetensors"


def test_a_pickled_checkpoint_without_prefix_and_with_old_buffers(
    folder: Path, original: tuple[Path, Tensors]
) -> None:
    old = {name.removeprefix("transformer."): tensor for name, tensor in original[1].items()}
    for layer in range(2):
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 29, 29, dtype=torch.uint8).tril()
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    for source in (pickled(folder, old), folder / "pytorch_model.bin"):
        assert_same(load(source)[1], original[1])


def test_an_untied_head_is_kept(tmp_path: Path) -> None:
    expected = save(tmp_path, tie_word_embeddings=False)
    config, weights = load(tmp_path)
    assert not config.tie_word_embeddings
    assert torch.equal(weights["lm_head.weight"], expected["lm_head.weight"])
    assert not torch.equal(weights["lm_head.weight"], weights[TOKENS])
    (tmp_path / "config.json").unlink()
    assert load(tmp_path)[0] == config


def test_a_tied_head_may_stand_for_the_table(folder: Path, original: tuple[Path, Tensors]) -> None:
    rewrite(folder, lambda tensors: tensors | {"lm_head.weight": tensors[TOKENS].clone()})
    assert_same(load(folder)[1], original[1])
    rewrite(folder, lambda tensors: tensors.pop(TOKENS) is None or tensors)
    assert_same(load(folder)[1], original[1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_16_bit_checkpoint_is_kept_or_upcast(folder: Path, dtype: torch.dtype) -> None:
    rewrite(folder, lambda tensors: {name: tensor.to(dtype) for name, tensor in tensors.items()})
    _, kept = load(folder)
    assert {tensor.dtype for tensor in kept.values()} == {dtype}
    _, wide = load(folder, dtype=torch.float64)
    assert all(torch.equal(wide[name], kept[name].double()) for name in kept)


def test_shards_are_read_through_their_index(folder: Path, original: tuple[Path, Tensors]) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {
        "model-00001-of-00002.safetensors": names[:9],
        "model-00002-of-00002.safetensors": names[9:],
    }
    for shard, held in shards.items():
        save_file({name: tensors[name] for name in held}, folder / shard)
    weight_map = {name: shard for shard, held in shards.items() for name in held}
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for source in (folder, index):
        assert_same(load(source)[1], original[1])
    index.write_text(
        json.dumps({"weight_map": weight_map | {"extra": "model-00002-of-00002.safetensors"}})
    )
    with pytest.raises(WeightsError, match=r"00002-of-00002.safetensors: holds no extra"):
        load(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"model-00002-of-00002.safetensors: missing"):
        load(folder)
    index.write_text("{}")
    with pytest.raises(WeightsError, match=r"index.json: cannot be read as a shard index"):
        load(folder)


def test_without_a_configuration_shapes_tell_what_they_can(
    folder: Path, original: tuple[Path, Tensors]
) -> None:
    (folder / "config.json").unlink()
    config, weights = load(folder / "model.safetensors")
    assert config == GPT2Config(**SIZES)
    assert_same(weights, original[1])


def test_without_a_configuration_odd_heads_cannot_be_told(tmp_path: Path) -> None:
    save(tmp_path, n_embd=60, n_head=3)
    (tmp_path / "config.json").unlink()
    with pytest.raises(WeightsError, match=r"n_head cannot be told from 60 channels.*config.json"):
        load(tmp_path)


def test_an_inner_width_is_read_from_shapes(tmp_path: Path) -> None:
    save(tmp_path, n_inner=40)
    (tmp_path / "config.json").unlink()
    assert load(tmp_path)[0].n_inner == 40


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(FIRST) is None, f"{FIRST}: missing$"),
        (
            lambda t: [t.pop(name) for name in list(t) if ".h.1." in name],
            r"missing \(and 11 more\)",
        ),
        (lambda t: t.update(surprise=torch.ones(2)), "transformer.surprise: no parameter"),
        (
            lambda t: t.update({"h.2.attn.bias": torch.ones(1)}),
            "transformer.h.2.attn.bias: no parameter",
        ),
        (
            lambda t: t.update({FIRST: t[FIRST].T.contiguous()}),
            rf"{FIRST}: must have shape \(64, 192\), got \(192, 64\)",
        ),
        (lambda t: t.update({FIRST: t[FIRST].half()}), f"{FIRST}: is torch.float16 where"),
        (lambda t: t.update({FIRST: t[FIRST].to(torch.int8)}), f"{FIRST}: must be float64.*int8"),
        (lambda t: t.update({"lm_head.weight": t[TOKENS] + 1}), "lm_head.weight: differs from"),
        (lambda t: t.update({"wte.weight": t[TOKENS] + 1}), f"{TOKENS}: stored twice"),
    ],
)
def test_a_wrong_tensor_is_named(
    folder: Path, change: Callable[[Tensors], object], message: str
) -> None:
    def apply(tensors: Tensors) -> None:
        change(tensors)

    with pytest.raises(WeightsError, match=message) as raised:
        load(rewrite(folder, apply))
    assert "model.safetensors" in str(raised.value)


def test_more_layers_than_tensors_are_refused_before_they_fill_the_memory(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"n_layer": 10**9}))
    with pytest.raises(WeightsError, match="n_layer is 1000000000, but there are only 28 tensors"):
        load(folder)


def test_a_layer_number_that_fills_the_memory_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    name = f"h.{10**9}.ln_1.weight"
    with pytest.raises(WeightsError, match="n_layer is 1000000001, but there are only 29 tensors"):
        load(rewrite(folder, lambda tensors: tensors.update({name: torch.ones(64)})))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
@pytest.mark.parametrize("is_pickled", [False, True])
def test_a_truncated_file_is_named(folder: Path, share: float, is_pickled: bool) -> None:
    if is_pickled:
        pickled(folder, load_file(folder / "model.safetensors"))
    path = locate(folder)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(WeightsError, match=f"{path.name}: corrupt"):
        load(folder)


@pytest.mark.parametrize("is_pickled", [False, True])
def test_garbage_is_named(folder: Path, is_pickled: bool) -> None:
    if is_pickled:
        pickled(folder, {})
    path = locate(folder)
    path.write_bytes(bytes(range(256)) * 64)
    with pytest.raises(WeightsError, match=f"{path.name}: corrupt"):
        load(folder)


class Trap:
    """Code in a pickle that unpickling must not run."""

    sprung = False

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return Trap.spring, ()

    @staticmethod
    def spring() -> None:
        """Remember that code ran."""
        Trap.sprung = True


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Trap(), "corrupt, or holds more than tensors"),
        ([torch.ones(2)], "must hold a dict of tensors, got list"),
        ({"model": {"wte.weight": torch.ones(2)}}, "'model': must be a tensor, got dict"),
    ],
)
def test_a_pickle_of_anything_else_is_refused(folder: Path, content: object, message: str) -> None:
    with pytest.raises(WeightsError, match=f"pytorch_model.bin: {message}"):
        load(pickled(folder, content))
    assert not Trap.sprung


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "llama"}, "model_type must be gpt2, got llama"),
        ({"add_cross_attention": True}, "add_cross_attention changes the result"),
        ({"activation_function": "prelu"}, "activation_function must be one of"),
        ({"n_embd": "64"}, "n_embd must be int, got '64'"),
        ({"n_layer": True}, "n_layer must be int, got True"),
        ({"n_inner": 1.5}, "n_inner must be int or null"),
        ({"n_head": 5}, "n_embd 64 is not a multiple of n_head 5"),
        ({"hidden_size": 32}, "hidden_size says 32 where n_embd says 64"),
        ({"n_positions": 30}, r"transformer.wpe.weight: must have shape \(30, 64\)"),
    ],
)
def test_a_wrong_entry_of_the_configuration_is_named(
    folder: Path, entries: dict[str, Any], message: str
) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    with pytest.raises(WeightsError, match=message):
        load(folder)


@pytest.mark.parametrize(("content", "message"), [("{", "cannot be read"), ("[]", "got list")])
def test_a_broken_configuration_is_named(folder: Path, content: str, message: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(WeightsError, match=f"config.json: .*{message}"):
        load(folder)


def test_every_switch_reaches_the_configuration(tmp_path: Path) -> None:
    switches: dict[str, Any] = {
        "n_inner": 40,
        "activation_function": "relu",
        "layer_norm_epsilon": 0.25,
        "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True,
        "reorder_and_upcast_attn": True,
        "tie_word_embeddings": False,
    }
    save(tmp_path, **switches)
    assert load(tmp_path)[0] == GPT2Config(**(SIZES | switches))


def test_a_checkpoint_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(WeightsError, match=r"holds none of model\.safetensors"):
        load(tmp_path)
    with pytest.raises(WeightsError, match=r"no such file or folder$"):
        load(tmp_path / "nowhere" / "at" / "all")
    (tmp_path / "weights.gguf").touch()
    with pytest.raises(WeightsError, match=r"weights\.gguf: must end in \.safetensors"):
        load(tmp_path / "weights.gguf")

    def unreachable(*_: object, **__: object) -> str:
        raise ConnectionError("no network\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(WeightsError, match=r"gpt2: .* the hub did not give it \(.*no network\)$"):
        load("gpt2")


def test_a_hub_name_is_downloaded_and_pickles_only_without_any_others(
    original: tuple[Path, Tensors], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[tuple[str, str | None, list[str]]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        downloads.append((name, revision, allow_patterns))
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert_same(load("some/gpt2", revision="main")[1], original[1])
    assert [(name, revision) for name, revision, _ in downloads] == [("some/gpt2", "main")]
    assert not [pattern for pattern in downloads[0][2] if pattern.endswith(".bin")]
    pickled(folder, load_file(folder / "model.safetensors"))
    assert_same(load("gpt2")[1], original[1])
    assert "pytorch_model.bin" in downloads[2][2]
