"""The adapter of C functions: the C attention of the docs, and calls that it refuses."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from plain_kernel import is_right, is_wrong, outcomes, parameters

from attnspec.implementations.adapters import from_shared_library

SOURCE = Path(__file__).parents[3] / "docs" / "examples" / "attention.c"
LAWS = ("output-equals-the-definition", "a-causal-row-attends-its-prefix")

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler cc")

WITH_MASK_AND_LSE = """
#include <math.h>
#include <stdint.h>
/* One channel, one head, one batch element: enough to show each pointer. */
int attention(const float *q, const int64_t *qs, const float *k, const int64_t *ks,
              const float *v, const int64_t *vs, float *out, const int64_t *size,
              const char *mask, const int64_t *ms, float *lse, float scale) {
    if (size[0] * size[1] != 1 || size[3] != 1) return 7;
    for (int64_t i = 0; i < size[2]; i++) {
        double total = 0, sum = 0;
        for (int64_t j = 0; j < size[4]; j++) {
            if (mask && !mask[i * ms[2] + j * ms[3]]) continue;
            double weight = exp(scale * q[i * qs[2]] * k[j * ks[2]]);
            total += weight; sum += weight * v[j * vs[2]];
        }
        out[i] = total > 0 ? sum / total : 0;
        if (lse) lse[i] = log(total);
    }
    return 0;
}
"""


def built(folder, source):
    path = folder / "libattention.so"
    file = folder / "attention.c"
    file.write_text(source)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(path), str(file), "-lm"], check=True)
    return path


def test_a_correct_function_passes(tmp_path):
    adapted = from_shared_library(built(tmp_path, SOURCE.read_text()))
    assert parameters(adapted) == {"is_causal", "scale", "enable_gqa"}
    assert is_right(outcomes(adapted, "causal", "gqa", laws=LAWS, dtypes=(torch.float32,)))


def test_a_function_that_ignores_the_flag_fails(tmp_path):
    source = SOURCE.read_text()
    wrong = source.replace("is_causal && ", "0 && is_causal && ")
    assert wrong != source
    adapted = from_shared_library(built(tmp_path, wrong))
    assert is_wrong(outcomes(adapted, "causal", laws=LAWS, dtypes=(torch.float32,)))


def test_a_mask_and_the_log_sum_exp_are_pointers_of_their_own(tmp_path):
    library = ctypes.CDLL(str(built(tmp_path, WITH_MASK_AND_LSE)))
    adapted = from_shared_library(library, options=("attn_mask", "return_lse"))
    assert parameters(adapted) == {"attn_mask", "scale", "return_lse"}
    query, key = torch.ones(1, 1, 2, 1), torch.tensor([0.0, 1.0, 2.0]).view(1, 1, 3, 1)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    out, lse = adapted(query, key, key, mask, scale=1.0, return_lse=True)
    kept = torch.tensor([0.0, 2.0])
    torch.testing.assert_close(
        out[0, 0, :, 0], torch.stack([kept.softmax(0) @ kept, key[0, 0, 1, 0]])
    )
    torch.testing.assert_close(lse[0, 0], torch.stack([kept.logsumexp(0), key[0, 0, 1, 0]]))
    plain = adapted(query, key, key, scale=1.0)
    torch.testing.assert_close(plain[0, 0, 0, 0], key.flatten().softmax(0) @ key.flatten())


def test_a_call_that_the_function_would_misread_is_refused(tmp_path):
    adapted = from_shared_library(built(tmp_path, SOURCE.read_text()))
    x = torch.ones(1, 2, 3, 4)
    with pytest.raises(ValueError, match="query must be float32 of rank 4 on the CPU, got"):
        adapted(x.double(), x, x)
    with pytest.raises(ValueError, match="do not fit together"):
        adapted(x, x, x[:, :, :2])
    with pytest.raises(ValueError, match="2 query heads, 1 key/value heads: set enable_gqa"):
        adapted(x, x[:, :1], x[:, :1])
    with pytest.raises(TypeError, match="attn_mask"):
        adapted(x, x, x, attn_mask=torch.ones(3, 3))


def test_a_status_other_than_zero_is_an_error(tmp_path):
    options = ("attn_mask", "return_lse")
    adapted = from_shared_library(built(tmp_path, WITH_MASK_AND_LSE), options=options)
    x = torch.ones(1, 1, 2, 1)
    with pytest.raises(ValueError, match="attention refuses the call: it returned 7"):
        adapted(*[torch.ones(2, 1, 2, 1)] * 3)
    with pytest.raises(ValueError, match="attn_mask must be bool on the CPU"):
        adapted(x, x, x, torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"attn_mask of shape \(3, 3\) does not broadcast"):
        adapted(x, x, x, torch.ones(3, 3, dtype=torch.bool))


def test_an_unknown_option_is_named(tmp_path):
    with pytest.raises(TypeError, match="no option softcap; there are attn_mask"):
        from_shared_library(built(tmp_path, SOURCE.read_text()), options=("softcap",))
    with pytest.raises(OSError, match="nowhere"):
        from_shared_library(tmp_path / "nowhere.so")
