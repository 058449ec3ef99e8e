"""The adapters of JAX functions and of ONNX models, on correct kernels and wrong ones."""

import pytest
import torch


def formula(query, key, value, bias, scale):
    scores = query @ key.mT * scale + bias
    return scores.softmax(-1) @ value


class TestJax:
    @pytest.fixture
    def jax(self):
        return pytest.importorskip("jax", reason="jax is not installed")

    @pytest.fixture
    def attention(self, jax):
        from attnspec.implementations.adapters import from_jax

        return from_jax(jax.nn.dot_product_attention)

    def test_values_and_gradients_are_those_of_the_formula(self, attention):
        query, key, value = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
        bias = torch.randn(3, 5, 5, requires_grad=True)
        operands = (query, key, value, bias)
        out = attention(query, key, value, bias, scale=0.3)
        expected = formula(query, key, value, bias, 0.3)
        torch.testing.assert_close(out, expected)
        incoming = torch.randn_like(out)
        found = torch.autograd.grad(out, operands, incoming)
        torch.testing.assert_close(found, torch.autograd.grad(expected, operands, incoming))

    @pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
    def test_lengths_hide_the_keys_beyond_them(self, attention, dtype):
        query, key, value = (torch.randn(2, 3, 5, 4) for _ in range(3))
        lengths = torch.tensor([5, 2], dtype=dtype)
        out = attention(query, key, value, is_causal=True, key_lengths=lengths)
        beyond = torch.arange(5) >= lengths[:, None, None, None]
        later = torch.ones(5, 5, dtype=torch.bool).triu(1)
        bias = torch.zeros(2, 1, 5, 5).masked_fill(beyond | later, -torch.inf)
        torch.testing.assert_close(out, formula(query, key, value, bias, 0.5))

    def test_float64_is_enabled_within_a_call_alone(self, jax, attention):
        x = torch.ones(1, 1, 2, 1, dtype=torch.float64)
        assert attention(x, x, x).dtype == torch.float64
        assert jax.numpy.ones(1).dtype == "float32"

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_64_bits_are_enabled_for_tensors_of_64_bits_alone(self, jax, dtype):
        from attnspec.implementations.adapters import from_jax

        traced = set()

        def spied(query, key, value):
            traced.add(str(jax.numpy.zeros(()).dtype))
            return jax.nn.dot_product_attention(query, key, value)

        x = torch.ones(1, 1, 2, 1, dtype=dtype, requires_grad=True)
        from_jax(spied)(x, x, x).sum().backward()
        assert traced == {str(dtype).removeprefix("torch.")}

    def test_options_that_the_function_lacks_are_refused(self, jax):
        from attnspec.implementations.adapters import from_jax

        def plain(query, key, value):
            return jax.nn.dot_product_attention(query, key, value)

        x = torch.ones(1, 1, 2, 1)
        with pytest.raises(TypeError, match="is_causal"):
            from_jax(plain)(x, x, x, is_causal=True)
        with pytest.raises(TypeError, match="key_lengths"):
            from_jax(plain)(x, x, x, key_lengths=torch.tensor([1]))
        with pytest.raises(ValueError, match="set enable_gqa"):
            from_jax(plain)(x.expand(1, 2, 2, 1), x, x)


class TestOnnx:
    @pytest.fixture
    def model(self):
        onnx = pytest.importorskip("onnx", reason="onnx is not installed")
        helper = onnx.helper
        names = ("Q", "K", "V", "attn_mask")
        node = helper.make_node("Attention", names, ["Y"])
        values = [helper.make_tensor_value_info(n, 1, [None] * 4) for n in names]
        out = helper.make_tensor_value_info("Y", 1, None)
        return helper.make_model(
            helper.make_graph([node], "attention", values, [out]),
            opset_imports=[helper.make_opsetid("", 23)],
            ir_version=11,
        )

    @pytest.mark.parametrize("runtime", ["onnxruntime", "onnx"])
    def test_a_model_is_called_with_its_inputs(self, model, runtime):
        pytest.importorskip(runtime, reason=f"{runtime} is not installed")
        from attnspec.implementations.adapters import from_onnx

        if runtime == "onnx":
            from onnx.reference import ReferenceEvaluator

            model = ReferenceEvaluator(model)
        attention = from_onnx(model)
        query, key, value = (torch.randn(2, 3, 5, 4) for _ in range(3))
        bias = torch.randn(2, 3, 5, 5)
        expected = formula(query, key, value, bias, 0.5)
        torch.testing.assert_close(attention(query, key, value, attn_mask=bias), expected)
        with pytest.raises(TypeError, match="is_causal"):
            attention(query, key, value, is_causal=True)
        with pytest.raises(ValueError, match="the model needs attn_mask"):
            attention(query, key, value)

    def test_names_that_the_model_lacks_are_refused(self, model):
        from onnx.reference import ReferenceEvaluator

        from attnspec.implementations.adapters import from_onnx

        with pytest.raises(TypeError, match="the model has no input query; it has Q, K, V"):
            from_onnx(ReferenceEvaluator(model), inputs={"query": "query"})
        with pytest.raises(TypeError, match="the model needs the input attn_mask"):
            from_onnx(ReferenceEvaluator(model), inputs={"query": "Q", "key": "K", "value": "V"})
        with pytest.raises(TypeError, match="the model has no output lse; it has Y"):
            from_onnx(ReferenceEvaluator(model), lse="lse")


class TestOnnxOnACache:
    @pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
    def test_the_causal_flag_moves_with_lengths(self, library):
        pytest.importorskip("onnx", reason="onnx is not installed")
        pytest.importorskip(library, reason=f"{library} is not installed")
        from attnspec.implementations import framework_names, load

        plain, cache, *_ = (load(name).attention for name in framework_names()[library])
        query, key = torch.zeros(2, 1, 2, 1), torch.zeros(2, 1, 5, 1)
        value = torch.arange(5.0).expand(2, 1, 1, 5).mT.contiguous()
        # the mean of the values that a query reads
        assert plain(query, key, value, is_causal=True)[0].flatten().tolist() == [0, 0.5]
        assert cache(query, key, value, is_causal=True)[0].flatten().tolist() == [1.5, 2]
        lengths = torch.tensor([5, 3])
        out = cache(query, key, value, is_causal=True, key_lengths=lengths)
        assert out[1].flatten().tolist() == [0.5, 1]
