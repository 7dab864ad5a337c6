"""Which calls are packed, and which descriptions contradict each other."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from patchwork.packing.boundaries import Boundaries  # noqa: E402
from patchwork.packing.errors import BoundariesError, IsolationError  # noqa: E402
from patchwork.packing.runtime.call_boundaries import describes_nothing, resolve  # noqa: E402

IDS = torch.zeros(1, 8, dtype=torch.int64)
RESTART = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4]])
CUMULATIVE = torch.tensor([0, 3, 8], dtype=torch.int32)
NUMBERS = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1]])


class Cache:
    def __init__(self, length):
        self.length = length

    def get_seq_length(self):
        return self.length


def lengths(**arguments):
    found = resolve({"input_ids": IDS, **arguments})
    return None if found is None else found.lengths


@pytest.mark.parametrize(
    "arguments",
    [
        {"position_ids": RESTART},
        {"position_ids": RESTART[0]},
        {"position_ids": RESTART, "attention_mask": torch.ones(1, 8, dtype=torch.int64)},
        {"position_ids": torch.stack([RESTART] * 4)},
        {"cu_seq_lens_q": CUMULATIVE},
        {"cu_seq_lens_q": CUMULATIVE.long(), "cu_seq_lens_k": CUMULATIVE, "max_length_q": 5, "max_length_k": 5},
        {"cu_seqlens": [0, 3, 8]},
        {"seq_idx": NUMBERS},
        {"packed_seq_lengths": torch.tensor([3, 5])},
        {"seq_idx": torch.zeros(0), "position_ids": RESTART},
        {"seq_idx": NUMBERS, "cu_seq_lens_q": CUMULATIVE, "position_ids": RESTART},
        {"seq_idx": NUMBERS, "position_ids": torch.arange(8).expand(3, 1, 8)},
        {"input_ids": None, "inputs_embeds": torch.zeros(1, 8, 4), "position_ids": RESTART},
    ],
)
def test_packed_calls(arguments):
    assert lengths(**arguments) == (3, 5)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"position_ids": torch.arange(8)[None]},
        {"position_ids": torch.arange(8).expand(3, 1, 8)},
        {"attention_mask": torch.ones(1, 8)},
        {"attention_mask": torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1]]), "position_ids": RESTART},
        {"attention_mask": torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0]]), "position_ids": RESTART},
        {"position_ids": torch.arange(8)[None], "past_key_values": Cache(5)},
        {"cu_seq_lens_q": [0, 8], "cache": Cache(5)},
        {"seq_idx": None, "cu_seq_lens_q": []},
        {"input_ids": None, "position_ids": RESTART},
    ],
)
def test_ordinary_calls(arguments):
    assert lengths(**arguments) is None


def test_a_call_without_positions_is_ordinary_by_its_shapes():
    assert describes_nothing({"input_ids": IDS, "attention_mask": torch.ones(1, 8)})
    assert describes_nothing({"input_ids": IDS[:, :1], "position_ids": torch.tensor([[7]])})
    assert not describes_nothing({"input_ids": IDS, "position_ids": RESTART})
    assert not describes_nothing({"input_ids": IDS, "seq_idx": NUMBERS})


def test_one_explicit_document_carries_boundaries():
    assert lengths(cu_seq_lens_q=torch.tensor([0, 8])) == (8,)
    assert lengths(cu_seq_lens_q=torch.tensor([0, 8]), cache=Cache(0)) == (8,)


def test_a_masked_tail_is_padding():
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    found = resolve({"input_ids": IDS, "attention_mask": mask, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 0, 0, 0]])})
    assert found.lengths == (3, 2)
    assert found.cu_seqlens.tolist() == [0, 3, 5, 8]


def test_a_last_segment_of_zeros_is_padding():
    each_pad_a_document = torch.tensor([[0, 1, 2, 0, 1, 0, 0, 0]])
    assert lengths(position_ids=each_pad_a_document, cu_seq_lens_q=[0, 3, 5, 8]) == (3, 2)
    assert lengths(position_ids=each_pad_a_document, cu_seq_lens_q=[0, 3, 5]) == (3, 2)
    assert lengths(position_ids=each_pad_a_document, cu_seq_lens_q=[0, 3, 5, 6, 7, 8]) == (3, 2, 1, 1, 1)
    assert lengths(seq_idx=torch.tensor([[0, 0, 0, 1, 1, 2, 3, 4]]), cu_seq_lens_q=[0, 3, 5]) == (3, 2)


def test_several_rows():
    ids = torch.zeros(2, 4, dtype=torch.int64)
    found = resolve({"input_ids": ids, "position_ids": torch.tensor([[0, 1, 0, 1], [0, 1, 2, 3]])})
    assert found.rows == ((2, 2), (4,))
    shared = resolve({"input_ids": ids, "position_ids": torch.tensor([[0, 1, 0, 1]])})
    assert shared.rows == ((2, 2), (2, 2))
    assert resolve({"input_ids": ids, "cu_seq_lens_q": [0, 2, 4, 8]}).rows == ((2, 2), (4,))
    with pytest.raises(BoundariesError, match="batch size 2"):
        resolve({"input_ids": ids, "cu_seq_lens_q": [0, 3, 8]})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seq_idx": NUMBERS, "cu_seq_lens_q": [0, 4, 8]}, "seq_idx and cu_seq_lens_q contradict"),
        ({"cu_seq_lens_q": CUMULATIVE, "cu_seq_lens_k": [0, 4, 8]}, "cu_seq_lens_q and cu_seq_lens_k contradict"),
        ({"seq_idx": NUMBERS, "position_ids": torch.arange(8)[None]}, "position_ids and seq_idx contradict"),
        ({"cu_seq_lens_q": [0, 8], "position_ids": RESTART}, "position_ids and cu_seq_lens_q contradict"),
        ({"seq_idx": NUMBERS, "attention_mask": torch.tensor([[1] * 6 + [0] * 2])}, "inside a document"),
        ({"seq_idx": NUMBERS, "attention_mask": torch.tensor([[0] + [1] * 7])}, "padding last"),
        ({"cu_seq_lens_q": CUMULATIVE, "max_length_q": 4}, "max_length_q is 4, but a document has 5"),
        ({"position_ids": RESTART, "attention_mask": torch.ones(1, 1, 8, 8)}, "prepared attention mask"),
        ({"position_ids": RESTART, "attention_mask": torch.ones(1, 1, 8, 8), "cache": Cache(0)}, "prepared attention mask"),
        ({"seq_idx": NUMBERS, "attention_mask": {"full": None}, "cache": Cache(0)}, "prepared attention mask"),
        ({"position_ids": RESTART.expand(3, 1, 8)}, "all three planes"),
    ],
)
def test_contradictions(arguments, message):
    with pytest.raises(IsolationError, match=message):
        resolve({"input_ids": IDS, **arguments})


def test_a_description_of_another_row_is_refused():
    with pytest.raises(BoundariesError, match="one number per token"):
        lengths(seq_idx=torch.zeros(1, 7, dtype=torch.int64))
    with pytest.raises(BoundariesError, match="past the 8 tokens"):
        lengths(cu_seq_lens_q=[0, 3, 9])


def test_a_prepared_mask_is_the_callers_own_where_attention_is_all_there_is():
    arguments = {"input_ids": IDS, "position_ids": RESTART, "attention_mask": torch.ones(1, 1, 8, 8)}
    assert resolve(arguments, recurrent=False) is None


@pytest.mark.parametrize("ids", [[1, 1, 1, 0, 1, 2, 3, 4], [0, 0, 0, 0, 1, 2, 3, 4]])
def test_masks_that_generation_prepared_for_a_left_padded_batch_are_ordinary(ids):
    arguments = {"position_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, 1, 8, 8)}
    assert lengths(**arguments, past_key_values=Cache(0)) is None
    with pytest.raises(IsolationError, match="prepared attention mask"):
        lengths(**arguments)


def test_image_planes_that_jump_by_themselves_are_ordinary():
    planes = torch.tensor([[[0, 1, 1, 1, 1, 2, 3, 4]], [[0, 1, 1, 2, 2, 3, 4, 5]], [[0, 1, 2, 1, 2, 3, 4, 5]]])
    assert lengths(position_ids=planes) is None


def test_device_is_that_of_the_tokens():
    assert resolve({"input_ids": IDS, "position_ids": RESTART}) == Boundaries(((3, 5),), 8, IDS.device)


# ---- masks with zeros before the tail ---------------------------------------------------------------------------


def padded(masks, ids, **arguments):
    mask, positions = torch.tensor(masks), torch.tensor(ids)
    tokens = torch.zeros(mask.shape[0], positions.shape[-1], dtype=torch.int64)
    return resolve({"input_ids": tokens, "attention_mask": mask, "position_ids": positions, **arguments}, recurrent=False)


@pytest.mark.parametrize(
    ("mask", "ids"),
    [
        ([0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 2]),
        ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 1, 2]),
        ([0, 0, 0, 1, 1, 1], [-1, -1, -1, 0, 1, 2]),
        ([0, 0, 1, 1, 0, 0], [5, 4, 0, 1, 0, 0]),
        ([1, 1, 0, 0, 1, 1], [0, 1, 1, 1, 2, 3]),
        ([1, 1, 0, 0, 1, 1], [0, 1, 0, 0, 4, 5]),
        ([0, 0, 0, 0, 0, 0], [0, 1, 0, 1, 0, 1]),
    ],
)
def test_positions_that_go_up_among_the_kept_tokens_are_those_of_a_padded_row(mask, ids):
    assert padded([mask], [ids]) is None
    assert padded([mask, [1] * 6], [ids, [0, 1, 2, 3, 4, 5]]) is None
    assert padded([mask], [[ids]] * 4) is None


@pytest.mark.parametrize(
    ("mask", "ids"),
    [
        ([0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 0, 1]),
        ([1, 1, 0, 1, 1, 1], [0, 1, 0, 0, 1, 2]),
        ([0, 1, 1, 1, 1, 0], [0, 0, 1, 1, 2, 0]),
        ([0, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 2]),
    ],
)
def test_packed_rows_with_padding_before_the_end_are_refused(mask, ids):
    with pytest.raises(IsolationError, match="padding last"):
        padded([mask], [ids])
    with pytest.raises(IsolationError, match="padding last"):
        padded([[1] * 6, mask], [[0, 1, 2, 3, 4, 5], ids])
    if mask[0] == 1:
        assert padded([[1] * 6], [ids]).packed, "the control: without the mask these are documents"


def test_a_left_padded_row_does_not_excuse_its_packed_neighbour():
    rows = [[0, 0, 0, 0, 1, 2], [0, 1, 2, 0, 1, 2]]
    with pytest.raises(IsolationError, match="padding last"):
        padded([[0, 0, 0, 1, 1, 1], [1] * 6], rows)
    assert padded([[0, 0, 0, 1, 1, 1], [1] * 6], [rows[0], [0, 1, 2, 3, 4, 5]]) is None


def test_image_planes_of_a_left_padded_row_are_ordinary_and_packed_ones_are_not():
    ordinary, packed = [1, 1, 0, 1, 1, 2], [1, 1, 1, 2, 0, 1]
    assert padded([[0, 0, 1, 1, 1, 1]], [[ordinary]] * 3) is None
    with pytest.raises(IsolationError, match="padding last"):
        padded([[0, 0, 1, 1, 1, 1]], [[packed]] * 3)


# ---- caches -----------------------------------------------------------------------------------------------------


class Uncounted:
    """Recurrent states alone: it cannot say how full it is."""


@pytest.mark.parametrize("cache", [Cache(5), Uncounted()])
@pytest.mark.parametrize(
    "arguments", [{"position_ids": RESTART}, {"position_ids": RESTART + 5}, {"seq_idx": NUMBERS}, {"cu_seq_lens_q": CUMULATIVE}]
)
def test_packed_rows_cannot_continue_a_cache(arguments, cache):
    with pytest.raises(IsolationError, match=r"came with cache, which holds tokens already"):
        lengths(**arguments, cache=cache)
    assert lengths(**arguments) == (3, 5)


@pytest.mark.parametrize("arguments", [{"position_ids": RESTART}, {"seq_idx": NUMBERS}, {"cu_seq_lens_q": CUMULATIVE}])
def test_packed_rows_do_not_fill_a_cache(arguments):
    with pytest.raises(IsolationError, match=r"cache \(past_key_values\).*use_cache=False"):
        lengths(**arguments, past_key_values=Cache(0))
    assert lengths(**arguments, use_cache=True) == (3, 5)


@pytest.mark.parametrize(
    ("mask", "ids"),
    [
        (None, [9, 10, 11, 12]),
        ([0] * 6 + [1] * 6, [2, 3, 4, 5]),
        ([0] * 10 + [1] * 2, [0, 0, 0, 1]),
        ([0] * 10 + [1] * 2, [1, 1, 0, 1]),
    ],
)
def test_chunks_of_a_left_padded_prompt_continue_a_cache(mask, ids):
    masks = None if mask is None else torch.tensor([mask])
    arguments = {"input_ids": IDS[:, :4], "position_ids": torch.tensor([ids]), "attention_mask": masks}
    assert resolve({**arguments, "past_key_values": Cache(8)}) is None
    restarting = {**arguments, "position_ids": torch.tensor([[0, 1, 0, 0]])}
    with pytest.raises(IsolationError, match="continue a cache"):
        resolve({**restarting, "past_key_values": Cache(8)})


def test_one_token_after_a_cache_is_ordinary_whatever_generation_still_passes_on():
    arguments = {"input_ids": IDS[:, :1], "position_ids": torch.tensor([[8]]), "seq_idx": NUMBERS}
    assert resolve({**arguments, "past_key_values": Cache(8)}) is None


def test_a_paged_cache_keeps_its_rows_apart_by_itself():
    class PagedAttentionCache:
        pass

    arguments = {"input_ids": IDS, "position_ids": RESTART, "cu_seq_lens_q": CUMULATIVE, "cache": PagedAttentionCache()}
    assert resolve(arguments, recurrent=False) is None
    with pytest.raises(IsolationError, match="continue a cache"):
        resolve(arguments, recurrent=True)


def test_prepared_masks_with_a_cache_in_use():
    prepared = {"attention_mask": torch.ones(1, 1, 8, 13), "cache": Cache(5)}
    assert lengths(position_ids=torch.tensor([[0, 0, 0, 1, 2, 3, 4, 5]]), **prepared) is None
    assert lengths(position_ids=torch.arange(5, 13)[None], **prepared) is None
    with pytest.raises(IsolationError, match="prepared attention mask"):
        lengths(position_ids=RESTART, **prepared)


@pytest.mark.parametrize("cache", [Cache(4), Uncounted(), Cache(0), None])
def test_the_last_columns_of_a_mask_are_those_of_the_call(cache):
    """Three tokens behind four; only with a count of none held are the first columns theirs."""
    mask = torch.tensor([[0, 0, 0, 0, 0, 1, 1]])
    arguments = {"input_ids": IDS[:, :3], "attention_mask": mask, "past_key_values": cache}
    ordinary = {**arguments, "position_ids": torch.tensor([[0, 0, 1]])}
    if cache is None or cache.__dict__.get("length") != 0:
        assert resolve(ordinary) is None
    packed = {**arguments, "position_ids": torch.tensor([[0, 0, 0]]), "attention_mask": torch.ones(1, 7)}
    if cache is not None:
        with pytest.raises(IsolationError, match="cache"):
            resolve(packed)


# ---- generation --------------------------------------------------------------------------------------------------


def test_positions_that_go_on_from_padding_are_generations_where_it_asks_for_logits():
    mask, ids = [1, 1, 1, 1, 0, 0, 1], [0, 1, 2, 3, 0, 0, 1]
    with torch.no_grad():
        assert padded([mask], [ids], logits_to_keep=1) is None
        assert padded([mask, [1] * 7], [ids, [*range(7)]], logits_to_keep=3) is None
        assert padded([mask], [[ids]] * 3, logits_to_keep=1) is None
        for more in ({}, {"logits_to_keep": 0}, {"logits_to_keep": torch.tensor([1])}):
            with pytest.raises(IsolationError, match="padding last"):
                padded([mask], [ids], **more)
        for packed in ([0, 1, 2, 3, 0, 0, 0], [0, 1, 0, 1, 0, 0, 1], [0, 1, 2, 3, 0, 0, 2]):
            with pytest.raises(IsolationError, match="padding last"):
                padded([mask], [packed], logits_to_keep=1)
        with pytest.raises(IsolationError, match="padding last"):
            padded([mask], [ids], logits_to_keep=1, seq_idx=torch.tensor([[0, 0, 0, 0, 1, 1, 1]]))
    with pytest.raises(IsolationError, match="padding last"):
        padded([mask], [ids], logits_to_keep=1)


# ---- masks that number documents ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "rows"),
    [
        ([[1, 1, 1, 2, 2, 2, 2, 2]], ((3, 5),)),
        ([[1, 1, 1, 2, 2, 0, 0, 0]], ((3, 2),)),
        ([[4, 4, 4, 5, 5, 6, 6, 6]], ((3, 2, 3),)),
        ([[1, 1, 1, 2, 2, 2, 2, 2], [3, 3, 3, 3, 3, 3, 0, 0]], ((3, 5), (6,))),
    ],
)
def test_numbers_above_one_are_documents(mask, rows):
    ids = IDS.expand(len(mask), -1)
    for known in (True, False):
        found = resolve({"input_ids": ids, "attention_mask": torch.tensor(mask)}, recurrent=False, known=known)
        assert found.rows == rows
    assert not describes_nothing({"input_ids": ids, "attention_mask": torch.tensor(mask)})


def test_numbers_are_documents_by_their_type_and_fall_in_no_known_model():
    mask = torch.tensor([[2, 1, 1, 1, 1, 0, 0, 0]])
    assert resolve({"input_ids": IDS, "attention_mask": mask}, recurrent=False, known=False) is None
    with pytest.raises(BoundariesError, match=r"\[2, 1\], not 1, 2, 3"):
        resolve({"input_ids": IDS, "attention_mask": mask}, recurrent=False)
    for other in (mask.bool(), mask.float()):
        assert describes_nothing({"input_ids": IDS, "attention_mask": other})
        assert resolve({"input_ids": IDS, "attention_mask": other}) is None
    assert describes_nothing({"input_ids": IDS[:, :1], "attention_mask": mask})


# ---- padding that was numbered as a document ---------------------------------------------------------------------


@pytest.mark.parametrize("given", ["seq_idx", "cu_seq_lens_q", "position_ids"])
def test_a_tail_that_the_mask_shows_is_no_document(given):
    made = Boundaries.from_seq_lens([5], total=8).model_kwargs()
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    found = resolve({"input_ids": IDS, "attention_mask": mask, given: made[given]})
    assert found is None or (found.rows, found.packed) == (((5,),), False)
    shown = resolve({"input_ids": IDS, given: made[given]})
    assert shown.rows == ((5, 3),), "without the mask nothing shows that it is padding"
    with_zeros = {"seq_idx": made["seq_idx"], "position_ids": torch.tensor([[0, 1, 2, 3, 4, 0, 0, 0]])}
    assert resolve({"input_ids": IDS, **with_zeros}).rows == ((5,),)
    several = {"cu_seq_lens_q": [0, 3, 5, 8], "attention_mask": mask}
    assert resolve({"input_ids": IDS, **several}).rows == ((3, 2),)


# ---- runs on shapes ---------------------------------------------------------------------------------------------


def test_what_has_no_values_is_ordinary():
    from torch._subclasses.fake_tensor import FakeTensorMode

    meta = {"input_ids": IDS.to("meta"), "position_ids": RESTART.to("meta"), "attention_mask": torch.ones(1, 8, device="meta")}
    assert resolve(meta) is None
    with FakeTensorMode() as mode:
        fake = {"input_ids": mode.from_tensor(IDS), "position_ids": mode.from_tensor(RESTART)}
        assert resolve(fake) is None
        assert resolve({**fake, "seq_idx": mode.from_tensor(NUMBERS)}) is None
