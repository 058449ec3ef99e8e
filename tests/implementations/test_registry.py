"""The registry of implementations: names, lazy imports, clear errors."""

import subprocess
import sys

import pytest

from attnspec import implementations
from attnspec.conformance.runner.targets import every_name
from attnspec.spec import (
    Implementation,
    ModelImplementation,
    SamplerImplementation,
    TokenizerImplementation,
)


def test_every_name_loads_its_kind():
    for names, load, kind in (
        (implementations.names, implementations.load, Implementation),
        (implementations.model_names, implementations.load_model, ModelImplementation),
        (implementations.tokenizer_names, implementations.load_tokenizer, TokenizerImplementation),
        (implementations.sampler_names, implementations.load_sampler, SamplerImplementation),
    ):
        assert names()
        for name in names():
            assert isinstance(load(name), kind)
            assert load(name).name == name


CUDA = {
    *("packed_varlen", "packed_flash_attn", "packed_flashinfer", "packed_xformers"),
    *("paged_varlen", "paged_flash_attn", "paged_flashinfer", "paged_vllm"),
    *("liger_rms_norm", "liger_layer_norm", "liger_rotary", "liger_mlp"),
}


def test_a_run_includes_the_operators_but_those_that_take_minutes_or_a_device():
    every, of_a_run = implementations.operator_names(), implementations.operators_of_a_run()
    assert set(every) - set(of_a_run) == {"packed_flex", "paged_flex", *CUDA}
    assert set(of_a_run) <= set(every_name())
    assert "packed_flex" not in every_name()
    assert implementations.load_operator("packed_flex").name == "packed_flex"


def test_an_unknown_name_lists_those_that_are_known():
    with pytest.raises(KeyError, match="no implementation 'egaer'; there are eager, sdpa"):
        implementations.load("egaer")
    with pytest.raises(KeyError, match="no model 'sdpa'; there are huggingface_gpt2"):
        implementations.load_model("sdpa")
    with pytest.raises(KeyError, match="no tokenizer"):
        implementations.load_tokenizer("")
    with pytest.raises(KeyError, match="no sampler"):
        implementations.load_sampler("")


def test_nothing_is_imported_before_it_is_asked_for():
    code = (
        "import sys, attnspec.implementations as registry; registry.names(); "
        "loaded = [m for m in sys.modules if m.startswith('attnspec.implementations.')]; "
        "assert not loaded, loaded; assert 'transformers' not in sys.modules; "
        "registry.load('compiled'); assert 'torch._inductor.compile_fx' not in sys.modules; "
        "registry.load_model('huggingface_gpt2'); assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120)
