"""How the shipped model was made: the training network is the function transformers computes; training resumes
identically; prompts are deterministic and of the stated form.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from random_model import write_random_model
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from mtplab.bench.hf import Reference, load_reference
from mtplab.config.locate import assets_directory
from mtplab.errors import ConfigError
from mtplab.model.checkpoint import load_checkpoint
from mtplab.model.config import read_model_config
from mtplab.training.checkpoint import export, load
from mtplab.training.corpus import SEP, SEPARATOR, Corpus, read_corpus, train_tokenizer
from mtplab.training.evaluation import evaluate, held_out_set
from mtplab.training.log import TrainingLog
from mtplab.training.loop import Material, checkpoint_path, run_stage
from mtplab.training.mixture import Mixture
from mtplab.training.network import Mode, TrainingNetwork
from mtplab.training.prompts import START_TOKENS, code_prompts, edit_prompts
from mtplab.training.selection import causal_mask, index_loss, top_mask
from mtplab.training.settings import Settings, Shares, compose_settings, read_settings
from mtplab.workloads.reader import read_jsonl

ROWS = 60


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_model(tmp_path_factory.mktemp("random"), hidden_size=32, vocab_size=300, index_n_heads=8)


@pytest.fixture(scope="module")
def network(directory: Path) -> TrainingNetwork:
    return loaded(directory)


@pytest.fixture(scope="module")
def dense(directory: Path) -> Reference:
    return load_reference(directory, index_topk=512)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """A dozen library files: enough for every part of the pipeline, tokenised in a moment."""
    files = read_corpus()
    short = sorted((file for file in files.training if len(file.text) < 30_000), key=lambda file: file.name)
    return Corpus(tuple(short[:8]), tuple(files.held_out[:8]))


@pytest.fixture(scope="module")
def tokenizer(corpus: Corpus) -> Tokenizer:
    return train_tokenizer(corpus.training, 300)


@pytest.fixture(scope="module")
def material(corpus: Corpus, tokenizer: Tokenizer) -> Material:
    return Material(Mixture(corpus, tokenizer, 300, 0), held_out_set(corpus, tokenizer, 40))


def loaded(directory: Path) -> TrainingNetwork:
    network = TrainingNetwork(read_model_config(directory)).eval()
    network.load_state_dict(load_file(directory / "model.safetensors"))
    return network


def random_tokens(count: int, vocab: int = 300, seed: int = 0) -> list[int]:
    return torch.randint(0, vocab, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def predict(network: TrainingNetwork, tokens: list[int], depths: int, mode: Mode) -> tuple[Tensor, list[Tensor]]:
    prediction = network(torch.tensor([tokens]), depths, mode)
    return prediction.logits[0], [logits[0] for logits in prediction.depths]


def test_dense_logits_are_those_of_transformers(network: TrainingNetwork, dense: Reference) -> None:
    tokens = random_tokens(ROWS + 2)
    ours, _ = predict(network, tokens, 1, Mode.DENSE)
    torch.testing.assert_close(ours, dense.logits(tokens[:ROWS]), atol=1e-4, rtol=0)


def test_sparse_logits_are_those_of_transformers(network: TrainingNetwork, directory: Path) -> None:
    """Up to the first row where a layer's last chosen and first rejected score nearly tie: it may choose otherwise."""
    tokens, budget = random_tokens(ROWS + 2, seed=3), network.config.index_topk
    clear = torch.ones(ROWS, dtype=torch.bool)

    def observe(layer: int, attention: Tensor, scores: Tensor) -> None:
        if layer < network.config.num_hidden_layers:
            ranked = scores[0].masked_fill(~causal_mask(ROWS), float("-inf")).sort(-1, descending=True).values
            last, following = ranked[:, budget - 1], ranked[:, budget]
            gap = (last - following) / torch.maximum(last.abs(), following.abs())
            clear.logical_and_(~((gap < 1e-4) | (last == following)) | following.isinf())

    with torch.no_grad():
        ours = network(torch.tensor([tokens]), 1, Mode.SPARSE, observer=observe).logits[0]
    compared = int(clear.int().cumprod(0).sum())
    assert compared > 2 * budget, f"only {compared} rows before the first near-tie"
    theirs = load_reference(directory, attention="eager").logits(tokens[:compared])
    torch.testing.assert_close(ours[:compared], theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", [0, 1])
def test_depths_are_the_recurrent_mtp_chain(network: TrainingNetwork, dense: Reference, seed: int) -> None:
    """transformers' MTP layer on the prefix, then on its own output row by row: fed with the same drafts, row t of our
    depths gives the same drafts.
    """
    depths = 4
    known = random_tokens(30, seed=seed)
    drafts, margins = dense.drafts(known[:-1], known[-1], depths)
    assert min(margins) > 1e-3
    tokens = [*known, *drafts]  # exactly T + depths + 1 of them, T = 29
    _, logits = predict(network, tokens, depths, Mode.DENSE)
    assert [int(one[-1].argmax()) for one in logits] == drafts


def test_a_budget_of_everything_is_dense(directory: Path) -> None:
    network = loaded(write_random_model(directory.parent / "wide", hidden_size=32, index_topk=64))
    tokens = torch.tensor([random_tokens(50, vocab=96)])
    with torch.no_grad():
        dense, sparse = (network(tokens, 3, mode) for mode in (Mode.DENSE, Mode.SPARSE))
    torch.testing.assert_close(sparse.logits, dense.logits, atol=1e-4, rtol=0)
    for ours, theirs in zip(sparse.depths, dense.depths, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_top_mask_takes_the_best_rows() -> None:
    scores = torch.randn(2, 20, 20, generator=torch.Generator().manual_seed(0))
    mask = top_mask(scores, causal_mask(20), 5)
    assert mask.sum(-1)[0].tolist() == [min(row + 1, 5) for row in range(20)]
    assert not (mask & ~causal_mask(20)).any()
    best = scores[1, 19].topk(5).indices
    assert mask[1, 19].nonzero().flatten().tolist() == sorted(best.tolist())


def test_index_loss_is_zero_for_a_perfect_indexer() -> None:
    mask = causal_mask(12).expand(1, 12, 12)
    scores = torch.randn(1, 12, 12, generator=torch.Generator().manual_seed(0))
    attention = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
    assert index_loss(attention, scores, mask).item() == pytest.approx(0, abs=1e-6)
    assert index_loss(attention, -scores, mask).item() > 0.1


def test_batches_depend_on_their_generator_alone(corpus: Corpus, tokenizer: Tokenizer, material: Material) -> None:
    mixture = material.mixture
    shares = Shares(plain=1, repeat=1, copy=1, recall=1, short=1)
    one, two, other = (mixture.batch(np.random.default_rng(seed), 20, 90, shares) for seed in (1, 1, 2))
    assert one.shape == (20, 90)
    assert one.equal(two)
    assert not one.equal(other)
    assert 0 <= int(one.min()) < int(one.max()) < 300
    again = Mixture(corpus, tokenizer, 300, 0).batch(np.random.default_rng(1), 20, 90, shares)
    assert one.equal(again)


def test_repeats_repeat(material: Material) -> None:
    repeats = material.mixture.batch(
        np.random.default_rng(0), 4, 400, Shares(plain=0, repeat=1, copy=0, recall=0, short=0)
    )
    for row in repeats.tolist():
        period = row.index(SEP) + 1
        assert row[period:] == row[:-period]


def small_settings(directory: Path, model: Path) -> Settings:
    """Four steps a stage of the shipped recipe, at a size that takes milliseconds."""
    settings = read_settings(
        compose_settings(f"dir={directory}", f"model_dir={model}", "wandb=false", "evaluate_every=1", "save_every=2")
    )
    for stage in settings.stages.values():
        del stage.phases[:-1]
        stage.phases[0].steps = 4
        for batch in stage.phases[0].batches:
            batch.sequences, batch.length = 4, 40
    return settings


class Interrupted(Exception):
    pass


class StoppingLog(TrainingLog):
    """Stops training as a kill would, after the record of one step."""

    def __init__(self, directory: Path, stop: tuple[str, int]) -> None:
        super().__init__(directory, {}, wandb=False)
        self._stop = stop

    def write(self, record: dict[str, Any]) -> None:
        super().write(record)
        if (record["stage"], record["step"]) == self._stop:
            raise Interrupted


def train(settings: Settings, material: Material, stages: str, log: TrainingLog) -> TrainingNetwork:
    network = TrainingNetwork(read_model_config(settings.model_directory), settings.tied)
    for stage in stages:
        run_stage(stage, network, settings, material, log)
    return network


def records(directory: Path) -> list[dict[str, Any]]:
    lines = (directory / "training_log.jsonl").read_text(encoding="utf-8").splitlines()
    parsed = [json.loads(line) for line in lines]
    return [{key: v for key, v in record.items() if key not in ("minutes", "tokens_per_second")} for record in parsed]


def test_a_resumed_training_is_the_same_training(material: Material, directory: Path, tmp_path: Path) -> None:
    settings = small_settings(tmp_path / "whole", directory)
    whole = train(settings, material, "123", TrainingLog(settings.directory, {}, wandb=False))
    parts = copy.copy(settings)
    parts.dir = str(tmp_path / "parts")
    for stop in (("1", 3), ("2", 1), ("3", 3)):  # checkpoints lie at even steps
        with pytest.raises(Interrupted):
            train(parts, material, "123"[: int(stop[0])], StoppingLog(parts.directory, stop))
    resumed = train(parts, material, "123", TrainingLog(parts.directory, {}, wandb=False))
    assert records(parts.directory) == records(settings.directory)
    assert [(r["stage"], r["step"]) for r in records(parts.directory)] == [(s, n) for s in "123" for n in range(1, 5)]
    for name, tensor in whole.state_dict().items():
        assert tensor.equal(resumed.state_dict()[name]), name

    exported = write_random_model(tmp_path / "exported", hidden_size=32, vocab_size=300, index_n_heads=8)
    export(load(checkpoint_path(parts, "3")).weights(), exported / "model.safetensors")
    load_checkpoint(exported, torch.float32, torch.device("cpu"), with_index=True)
    figures = evaluate(loaded(exported), material.held_out, Mode.SPARSE)
    assert records(parts.directory)[-1]["copy_loss"] == round(float(str(figures["copy_loss"])), 4)


def test_stages_train_their_parts(material: Material, directory: Path, tmp_path: Path) -> None:
    settings = small_settings(tmp_path, directory)
    network = TrainingNetwork(read_model_config(directory))
    log = TrainingLog(settings.directory, {}, wandb=False)
    moved: dict[str, set[bool]] = {}
    for stage in "123":
        before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
        run_stage(stage, network, settings, material, log)
        changed = {name: not tensor.equal(before[name]) for name, tensor in network.state_dict().items()}
        moved[f"{stage} indexers"] = {flag for name, flag in changed.items() if ".indexer." in name}
        moved[f"{stage} rest"] = {flag for name, flag in changed.items() if ".indexer." not in name}
    # stage 1 draws the weights first, so that only its optimizers say what it trains
    assert {key: moved[key] for key in ("2 indexers", "2 rest", "3 indexers", "3 rest")} == {
        "2 indexers": {True},
        "2 rest": {False},
        "3 indexers": {True},
        "3 rest": {True},
    }
    assert not any(".indexer." in name for name in load(checkpoint_path(settings, "1")).tensors if "optimizer/" in name)


def test_other_settings_are_not_resumed(material: Material, directory: Path, tmp_path: Path) -> None:
    settings = small_settings(tmp_path, directory)
    log = TrainingLog(settings.directory, {}, wandb=False)
    with pytest.raises(ConfigError, match=r"dir: no stage1\.safetensors there"):
        train(settings, material, "2", log)
    train(settings, material, "1", log)
    settings.stages["1"].warmup += 1
    with pytest.raises(ConfigError, match="made with other settings"):
        train(settings, material, "1", log)
    checkpoint_path(settings, "1").write_bytes(b"\x00" * 20)
    with pytest.raises(ConfigError, match="is not a checkpoint"):
        train(settings, material, "1", log)


def test_a_half_line_of_a_killed_run_is_dropped(tmp_path: Path) -> None:
    log = TrainingLog(tmp_path, {}, wandb=False)
    for step in (1, 2):
        log.write({"stage": "1", "step": step, "train_loss": 0.123456, "list": [0.98765]})
    with log.path.open("a") as file:
        file.write('{"stage": "1", "st')
    log.forget("1", 1)
    assert records(tmp_path) == [{"stage": "1", "step": 1, "train_loss": 0.1235, "list": [0.9877]}]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["stage=4"], "stage"),
        (["seeed=1"], "seeed"),
        (["seed=x"], "seed"),
        (["+more=1"], "more"),
        (["threads=0"], "threads"),
        (["stages.1.mode=fast"], "stages.1.mode"),
        (["stages.1.phases=[]"], "stages.1"),
        (["stages.1.optimizers.0.parts=[vectors]"], "stages.1.optimizers"),
    ],
)
def test_bad_settings_are_one_line(overrides: list[str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(compose_settings(*overrides))
    assert caught.value.key == key
    assert "\n" not in str(caught.value)


def test_prompts_are_deterministic(corpus: Corpus) -> None:
    shipped = Tokenizer.from_file(str(assets_directory() / "tiny" / "tokenizer.json"))
    first, second = (edit_prompts(corpus, shipped, 0, count=8) for _ in range(2))
    assert first == second
    assert [row.kind for row in first] == ["rename", "copy"] * 4
    assert code_prompts(corpus, shipped, 0, count=6) == code_prompts(corpus, shipped, 0, count=6)
    assert edit_prompts(corpus, shipped, 1, count=8) != first
    names = {file.name for file in corpus.held_out}
    assert {row.source for row in first} <= names


def test_shipped_edit_prompts() -> None:
    """Chunk, separator, the chunk's first tokens: as they are, or with one identifier renamed."""
    shipped = Tokenizer.from_file(str(assets_directory() / "tiny" / "tokenizer.json"))
    rows = read_jsonl(assets_directory() / "prompts" / "edit.jsonl", "workload.kind")
    assert [row["kind"] for row in rows] == ["rename", "copy"] * 32
    for row in rows:
        chunk, start = row["prompt"].split(SEPARATOR)
        chunk_ids, start_ids = shipped.encode(chunk).ids, shipped.encode(start).ids
        assert shipped.encode(row["prompt"]).ids == [*chunk_ids, SEP, *start_ids]
        assert 115 <= len(chunk_ids) <= 150
        assert len(start_ids) in START_TOKENS
        assert len(chunk_ids) + 1 + len(start_ids) < 190
        assert chunk.startswith(start) == (row["kind"] == "copy")
        assert chunk.endswith("\n")
        if row["kind"] == "copy":
            assert len(chunk_ids) - len(start_ids) >= 96


def test_shipped_code_prompts() -> None:
    shipped = Tokenizer.from_file(str(assets_directory() / "tiny" / "tokenizer.json"))
    rows = read_jsonl(assets_directory() / "prompts" / "code.jsonl", "workload.kind")
    assert len(rows) == 64
    assert {row["kind"] for row in rows} == {"continue"}
    assert all(140 <= len(shipped.encode(row["prompt"]).ids) <= 160 for row in rows)
    assert not any(Path(row["source"]).is_absolute() for row in rows)
