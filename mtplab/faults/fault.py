"""Contract of a fault, and `fault=none`: while an arm is built, a fault may replace its parts by broken ones.

The engine, the networks and the sync policies do not know about faults. A fault is one class and one YAML; the YAML's
`card` says where it is from, where it bites, where it does not, and by which figures it is known.
"""

from __future__ import annotations

from dataclasses import dataclass

from mtplab.engine.engine import EngineParts
from mtplab.graphs.runner import GraphFactory
from mtplab.heads.head import HeadParts
from mtplab.memory.layout import MemoryLayout
from mtplab.memory.memory import Memory
from mtplab.memory.mirror import Mirror
from mtplab.sparse.selector import Selector
from mtplab.sync.policy import InputPolicy


@dataclass(frozen=True, slots=True)
class Site:
    """Where a fault lives: k drafts, the memory layout, memory layers of target and drafter."""

    k: int
    layout: MemoryLayout
    target_layers: tuple[int, ...]
    draft_layers: tuple[int, ...]


class Fault:
    """Each hook is given a healthy part and returns what the arm shall use; this class, `fault=none`, changes nothing.

    Hooks are called once per arm, in the order below; `inputs` and `mirror` may wrap a policy, `memory` may return
    another of the same layout. `bind` comes first.
    """

    def __init__(self) -> None:
        self._site: Site | None = None

    @property
    def site(self) -> Site:
        assert self._site is not None, "bind() comes first"
        return self._site

    def bind(self, site: Site) -> None:
        self._site = site

    def memory(self, memory: Memory) -> Memory:
        return memory

    def mirror(self, mirror: Mirror) -> Mirror:
        return mirror

    def inputs(self, policy: InputPolicy) -> InputPolicy:
        return policy

    def selector(self, selector: Selector) -> Selector:
        """The selector of target and drafter."""
        return selector

    def head(self, parts: HeadParts) -> HeadParts:
        """What the drafter is built from."""
        return parts

    def graphs(self, factory: GraphFactory) -> GraphFactory:
        return factory

    def engine(self, parts: EngineParts) -> EngineParts:
        """Everything, once the graphs are captured."""
        return parts
