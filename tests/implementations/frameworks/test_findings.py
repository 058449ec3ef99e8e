"""Bugs of other libraries, in these libraries alone: each test fails once its bug is fixed.

The pages in docs/findings show these tests (test_findings.py).
"""

import subprocess
import sys

import pytest
import torch

FIXED = "no longer reproduces: remove the deviation and the finding"


class TestXTransformers:
    @pytest.fixture
    def attend(self):
        pytest.importorskip("x_transformers", reason="x-transformers is not installed")
        from x_transformers.attend import Attend

        return Attend

    query = torch.zeros(1, 1, 3, 1)
    value = torch.tensor([0.0, 1.0, 2.0]).view(1, 1, 3, 1)

    def test_the_flash_path_ignores_the_flag_of_a_call(self, attend):
        both = [
            attend(flash=flash)(self.query, self.query, self.value, causal=True)[0].flatten()
            for flash in (False, True)
        ]
        assert both[0].tolist() == [0.0, 0.5, 1.0]
        assert both[1].tolist() == [1.0, 1.0, 1.0], FIXED

    def test_a_mask_moves_the_diagonal_of_the_flash_path(self, attend):
        queries, readable = torch.zeros(1, 1, 5, 1), torch.ones(1, 1, 1, 3, dtype=torch.bool)
        module = attend(flash=True, causal=True)
        plain = module(queries, self.query, self.value)[0].flatten()
        masked = module(queries, self.query, self.value, mask=readable)[0].flatten()
        assert plain.tolist() == [0.0, 0.5, 1.0, 1.0, 1.0], FIXED
        assert masked.tolist() == [0.0, 0.0, 0.0, 0.5, 1.0], FIXED

    def test_a_clamped_bias_hides_nothing(self, attend):
        bias = torch.tensor([0.0, -torch.inf, -torch.inf]).view(1, 1, 1, 3)
        module = attend(softclamp_logits=True, logit_softclamp_value=1.0)
        out = module(self.query, self.query, self.value, attn_bias=bias)[0].flatten()
        assert (out > 0.6).all(), FIXED


class TestJax:
    @pytest.fixture
    def jax(self):
        return pytest.importorskip("jax", reason="jax is not installed")

    def test_compiled_calls_in_float16_raise(self, jax):
        if jax.default_backend() != "cpu":
            pytest.skip("the bug is of CPUs")
        x = jax.numpy.ones((1, 2, 1, 1), "float16")
        assert jax.nn.dot_product_attention(x, x, x).dtype == "float16"
        with pytest.raises(ValueError, match="F16_F16_F32"):
            jax.jit(jax.nn.dot_product_attention)(x, x, x)

    def test_compiled_calls_of_one_number_in_bfloat16_raise(self, jax):
        if jax.default_backend() != "cpu":
            pytest.skip("the bug is of CPUs")
        x, y = (jax.numpy.ones((1, keys, 1, 1), "bfloat16") for keys in (1, 2))
        assert jax.nn.dot_product_attention(x, x, x).dtype == "bfloat16"
        for key in (x, y):
            with pytest.raises(RuntimeError, match="BF16_BF16_F32"):
                jax.jit(jax.nn.dot_product_attention)(x, key, key)

    def test_the_log_sum_exp_of_a_row_without_keys_is_finite(self, jax):
        x, hidden = jax.numpy.zeros((1, 1, 1, 1)), jax.numpy.zeros((1, 1, 1, 1), bool)
        _, lse = jax.nn.dot_product_attention(x, x, x, mask=hidden, return_residual=True)
        assert -2.4e38 < lse.item() < -2.3e38, FIXED

    def test_the_log_sum_exp_is_rounded_to_16_bits(self, jax):
        x = jax.numpy.zeros((1, 300, 1, 1), "bfloat16")
        _, lse = jax.nn.dot_product_attention(x, x, x, return_residual=True)
        assert (lse.dtype, lse[0, 0, 0].item()) == ("bfloat16", 5.71875), FIXED


class TestKeras:
    @pytest.fixture
    def attention(self, monkeypatch):
        monkeypatch.setenv("KERAS_BACKEND", "torch")
        return pytest.importorskip("keras", reason="keras is not installed").ops

    def test_a_bias_beside_the_causal_flag_raises_by_dispatch(self, attention):
        x = torch.zeros(1, 2, 1, 1)
        bias = torch.zeros(1, 1, 2, 2)
        call = attention.dot_product_attention
        assert call(x, x, x, bias=bias, is_causal=True).shape == x.shape
        wider = torch.zeros(1, 2, 1, 2)
        with pytest.raises(RuntimeError, match="attn_mask should not be set when is_causal"):
            call(x, x, wider, bias=bias, is_causal=True)

    def test_a_row_without_keys_is_plain_attention_in_float16(self, attention):
        query = torch.ones(1, 1, 1, 1, dtype=torch.float16)
        key = torch.tensor([0.0, 16.0], dtype=torch.float16).view(1, 2, 1, 1)
        hidden = torch.zeros(1, 1, 1, 2, dtype=torch.bool)
        out = attention.dot_product_attention(query, key, key, mask=hidden)
        assert out.item() == 16.0, FIXED


class TestOnnxReference:
    def test_a_mask_of_one_row_gives_every_query_the_causal_mask_of_the_first(self):
        pytest.importorskip("onnx", reason="onnx is not installed")
        query, key = torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 5, 1)
        value = torch.arange(5.0).view(1, 1, 5, 1)
        mask = torch.ones(1, 5, dtype=torch.bool)
        node = one_node("onnx", "Attention", Q=query, K=key, V=value, attn_mask=mask, is_causal=1)
        assert node.flatten().tolist() == [0.0, 0.0, 0.0], FIXED


class TestOnnxRuntime:
    @pytest.fixture(autouse=True)
    def _installed(self):
        pytest.importorskip("onnx", reason="onnx is not installed")
        pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")

    def test_the_last_query_reads_the_future(self):
        query, key = torch.zeros(1, 3, 1), torch.zeros(1, 5, 1)
        value = torch.arange(5.0).view(1, 5, 1)
        out = one_node(
            "onnxruntime",
            "MultiHeadAttention",
            domain="com.microsoft",
            query=query,
            key=key,
            value=value,
            num_heads=1,
            unidirectional=1,
        )
        assert out.flatten().tolist() == [0.0, 0.5, 2.0], FIXED

    def test_a_hidden_score_that_overflows_is_read(self):
        query = torch.full((1, 1, 1, 1), 1.25, dtype=torch.float16)
        key = torch.tensor([0.0, 65504.0], dtype=torch.float16).view(1, 1, 2, 1)
        value = torch.tensor([1.0, 7.0], dtype=torch.float16).view(1, 1, 2, 1)
        mask = torch.tensor([[True, False]])
        out = one_node("onnxruntime", "Attention", Q=query, K=key, V=value, attn_mask=mask)
        assert out.item() == 7.0, FIXED

    @pytest.mark.parametrize(("d_head", "d_value"), [(0, 1), (1, 0)])
    def test_channels_of_number_zero_end_the_process(self, d_head, d_value):
        code = (
            "import torch\n"
            "from attnspec.implementations.onnx_operators import run\n"
            f"x, value = torch.zeros(1, 2, {d_head}), torch.zeros(1, 2, {d_value})\n"
            "inputs = {'query': x, 'key': x, 'value': value}\n"
            "run('onnxruntime', 'MultiHeadAttention', inputs, domain='com.microsoft', num_heads=1)"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
        assert ended.returncode == -8, FIXED  # SIGFPE


def one_node(runtime, operator, *, domain="", **given):
    """Run an operator on tensors, which are inputs, and other values, which are attributes."""
    from attnspec.implementations.onnx_operators import run

    inputs = {name: each for name, each in given.items() if isinstance(each, torch.Tensor)}
    attributes = {name: each for name, each in given.items() if name not in inputs}
    return run(runtime, operator, inputs, domain=domain, **attributes)
