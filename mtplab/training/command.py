"""`python scripts/train.py`: compose first, so that bad input ends in one clear line. Heavy imports come late."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from omegaconf import DictConfig, OmegaConf

from mtplab.config.locate import config_directory, display_path
from mtplab.errors import ConfigError
from mtplab.training.settings import STAGES, Settings, compose_settings, read_settings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from mtplab.training.corpus import Corpus

HELP = frozenset({"-h", "--help"})
CARD_PROMPTS = 16
USAGE = """\
How model=tiny was made: train it, export it, measure it.

  python scripts/train.py                    # stages 1, 2, 3, export, card; continues where it was stopped
  python scripts/train.py stage=1            # trunk and MTP module, dense attention
  python scripts/train.py stage=2            # indexers, by KL from the frozen network's attention
  python scripts/train.py stage=3            # everything, on the rows the indexers choose
  python scripts/train.py stage=export       # weights, tokenizer and log of dir into assets/tiny
  python scripts/train.py stage=card         # measure assets/tiny: quality_card.json
  python scripts/train.py stage=prompts      # write assets/prompts/{edit,code}.jsonl from held-out files
  python scripts/train.py assets=build ...   # keep the shipped model as it is

Configuration (change any key with key=value)
"""


def main() -> int:
    """Entry point of `scripts/train.py`. Exit code 2 for bad input."""
    arguments = sys.argv[1:]
    flags = {argument for argument in arguments if argument.startswith("-")}
    try:
        if flags & HELP:
            print(USAGE + OmegaConf.to_yaml(compose_settings(*(a for a in arguments if a not in flags))))
            return 0
        if not flags:
            read_settings(compose_settings(*arguments))
    except ConfigError as error:
        return _refuse(error)
    codes = [0]

    def task(cfg: DictConfig) -> None:
        try:
            perform(read_settings(cfg))
        except ConfigError as error:
            codes.append(_refuse(error))
        except KeyboardInterrupt:
            sys.exit(130)

    hydra.main(version_base="1.3", config_path=str(config_directory()), config_name="train")(task)()
    return max(codes)


def perform(settings: Settings) -> None:
    """Do what `settings.stage` says."""
    import torch

    torch.set_num_threads(settings.threads)
    tasks = [*STAGES, "export", "card"] if settings.stage == "all" else [settings.stage]
    stages = [task for task in tasks if task in STAGES]
    if stages:
        train(settings, stages)
    if "export" in tasks:
        export_to(settings)
    if "prompts" in tasks:
        from mtplab.training.corpus import read_corpus
        from mtplab.training.prompts import write_prompts
        from mtplab.workloads.workload import load_tokenizer

        directory = settings.assets_directory
        write_prompts(directory / "prompts", read_corpus(), load_tokenizer(directory / "tiny"), settings.seed)
    if "card" in tasks:
        import json

        from mtplab.training.corpus import read_corpus
        from mtplab.training.quality import write_card

        directory = settings.assets_directory
        card = write_card(directory, read_corpus(), settings.seed, CARD_PROMPTS, settings.threads)
        print(json.dumps(card, indent=2))


def train(settings: Settings, stages: list[str]) -> None:
    from mtplab.model.config import read_model_config
    from mtplab.training.corpus import read_corpus
    from mtplab.training.evaluation import DEPTHS, held_out_set
    from mtplab.training.log import TrainingLog
    from mtplab.training.loop import Material, run_stage
    from mtplab.training.mixture import Mixture
    from mtplab.training.network import TrainingNetwork

    config = read_model_config(settings.model_directory)
    rows = max(batch.length for s in settings.stages.values() for phase in s.phases for batch in phase.batches)
    if rows + DEPTHS > config.max_position_embeddings:
        problem = f"{rows} rows and {DEPTHS} depths exceed the model's {config.max_position_embeddings} positions"
        raise ConfigError("stages", problem, f"use lengths of {config.max_position_embeddings - DEPTHS} or less")
    corpus = read_corpus()
    tokenizer = _tokenizer(settings, corpus, config.vocab_size)
    mixture = Mixture(corpus, tokenizer, settings.pairs, settings.seed)
    material = Material(mixture, held_out_set(corpus, tokenizer, rows, settings.seed))
    plain: Any = OmegaConf.to_container(OmegaConf.structured(settings))
    log = TrainingLog(settings.directory, plain, settings.wandb)
    network, exit_code = TrainingNetwork(config, settings.tied), 1
    try:
        for stage in stages:
            run_stage(stage, network, settings, material, log)
        exit_code = 0
    finally:
        log.close(exit_code)


def export_to(settings: Settings) -> None:
    """The finished network of `dir` into `assets/tiny`, in Hugging Face layout."""
    from mtplab.training.checkpoint import export, load
    from mtplab.training.log import LOG_NAME
    from mtplab.training.loop import checkpoint_path

    target = settings.assets_directory / "tiny"
    target.mkdir(parents=True, exist_ok=True)
    export(load(checkpoint_path(settings, STAGES[-1])).weights(), target / "model.safetensors")
    for source in (
        settings.model_directory / "config.json",
        settings.directory / "tokenizer.json",
        settings.directory / LOG_NAME,
    ):
        if source.resolve() != (target / source.name).resolve():
            shutil.copyfile(source, target / source.name)
    print(f"exported to {display_path(target)}")


def _tokenizer(settings: Settings, corpus: Corpus, vocab_size: int) -> Tokenizer:
    """The tokenizer of this training: the one given, the one already in `dir`, or one trained now."""
    from tokenizers import Tokenizer

    from mtplab.training.corpus import train_tokenizer

    own = settings.directory / "tokenizer.json"
    own.parent.mkdir(parents=True, exist_ok=True)
    if settings.tokenizer and not own.is_file():
        given = Path(settings.tokenizer).expanduser()
        if not given.is_file():
            raise ConfigError("tokenizer", f"no {given.name} there", "give a tokenizer.json, or null to train one")
        shutil.copyfile(given, own)
    if not own.is_file():
        train_tokenizer(corpus.training, vocab_size).save(str(own))
    tokenizer = Tokenizer.from_file(str(own))
    if tokenizer.get_vocab_size() > vocab_size:
        problem = f"{tokenizer.get_vocab_size()} entries in {own.name}, {vocab_size} in the model"
        raise ConfigError("tokenizer", problem, "use a smaller one, another dir, or a model with a larger vocabulary")
    return tokenizer


def _refuse(error: ConfigError) -> int:
    print(f"error: {error}", file=sys.stderr)
    return 2
