"""What commands answer that neither an agent nor a controller says; JSON output has these keys."""

from __future__ import annotations

from msgspec import Struct, field

from limpet.agent.policies.said import FlowLine
from limpet.agent.status.paths import PathAnswer
from limpet.agent.status.ping import PingAnswer
from limpet.cli.doctor.catalogue import Harm
from limpet.cli.doctor.findings import Finding, Level


class Answered(Struct, frozen=True, kw_only=True):
    """Something that a command answers by itself."""


class Installed(Answered, frozen=True, kw_only=True):
    """`limpet install`, `limpet controller install`."""

    findings: list[Finding] = field(default_factory=list)
    steps: list[str]
    """What was done; with --dry-run what would be."""
    failure: str = ""
    """Why it is not whole; empty: it is."""


class Uninstalled(Answered, frozen=True, kw_only=True):
    """`limpet uninstall`, `limpet controller uninstall`."""

    steps: list[str]
    failures: list[str]


class JoinedCluster(Answered, frozen=True, kw_only=True):
    """`limpet join`."""

    name: str
    uid: str
    cluster: str
    segments: list[str]
    kept_pods: int
    """Number of pods of the machine that this one replaces, whose addresses are kept."""


class ControllersMoved(Answered, frozen=True, kw_only=True):
    """`limpet join --controller` without a token, on a node that has joined."""

    name: str
    """Name of the node."""
    cluster: str
    """Empty: no new address was asked, or none told."""
    controllers: list[str]
    """Controllers that it asks from now on."""
    before: list[str]
    unreached: list[str]
    """Why some of them could not be asked, which --force allows."""


class FindingLine(Answered, frozen=True, kw_only=True):
    """One line of `limpet doctor`."""

    level: Level
    id: str
    """What `limpet help` explains; empty: nothing is wrong."""
    harm: Harm
    what: str
    why: str
    advice: str
    topic: str

    @classmethod
    def of(cls, finding: Finding) -> FindingLine:
        return cls(
            level=finding.level,
            id=finding.id,
            harm=finding.harm,
            what=finding.what,
            why=finding.why,
            advice=finding.advice,
            topic=finding.topic,
        )


class Found(Answered, frozen=True, kw_only=True):
    """`limpet doctor`."""

    findings: list[FindingLine]


class Topic(Answered, frozen=True, kw_only=True):
    """A page of the documentation."""

    topic: str
    about: str


class Topics(Answered, frozen=True, kw_only=True):
    """`limpet help`."""

    topics: list[Topic]


class TopicShown(Answered, frozen=True, kw_only=True):
    """`limpet help TOPIC`."""

    topic: str
    markdown: str


class ReportPiece(Answered, frozen=True, kw_only=True):
    """A file of the archive of `limpet bugreport`."""

    file: str
    bytes: int
    note: str
    """Why it is not there, or is cut; empty: it is whole."""


class Reported(Answered, frozen=True, kw_only=True):
    """`limpet bugreport`."""

    archive: str
    contents: list[ReportPiece]


class Bundled(Answered, frozen=True, kw_only=True):
    """`limpet bundle`."""

    bundle: str
    folder: str
    """The one that it unpacks to."""
    sha256: str
    files: int
    bytes: int


class PathJudged(PathAnswer, frozen=True, kw_only=True):
    """`limpet path --port`."""

    policies: list[FlowLine]
    refused: str
    """Why the Service refuses that port whatever policies say; empty: it does not, or none is
    asked."""


class LabLack(Answered, frozen=True, kw_only=True):
    """Something that a topology of the lab needs and this machine does not have."""

    what: str
    cause: str
    used_for: str
    advice: str
    packages: list[str]
    """Debian's packages that bring it; empty: none does."""
    pairs: list[tuple[str, str]]
    """Nodes that would have no way to each other; empty: it is not about pairs."""


class WorldRefused(Answered, frozen=True, kw_only=True):
    """`limpet lab up` where this machine lacks something; nothing was built."""

    topology: str
    lacking: list[LabLack]
    topologies_without: list[str]
    """Topologies that come with Limpet and can be built here."""


class PageTokenMade(Answered, frozen=True, kw_only=True):
    """`limpet ui token create`."""

    token: str
    expires_at_s: float


class PageToken(Answered, frozen=True, kw_only=True):
    """A token in `limpet ui token list`."""

    name: str
    may_write: bool
    created_at_s: float
    expires_at_s: float


class PageTokens(Answered, frozen=True, kw_only=True):
    """`limpet ui token list`."""

    tokens: list[PageToken]


class PageTokenRemoved(Answered, frozen=True, kw_only=True):
    """`limpet ui token remove`."""

    removed: str


class PingSummary(Answered, frozen=True, kw_only=True):
    """What came of all rounds by one way."""

    rung: str
    """Or `packet`, of those through the datapath."""
    by: str
    """The relay, or where packets went; empty: the node itself."""
    version: int
    in_use: bool
    """The pair's packets went this way in the last round."""
    sent: int
    answered: int
    lost_percent: float
    least_ms: float | None
    mean_ms: float | None
    most_ms: float | None


class Pinged(Answered, frozen=True, kw_only=True):
    """`limpet ping`."""

    target: str
    node: str
    pod: str
    addresses: list[str]
    rung: str
    """Rung that the pair's packets took in the last round; empty: there was none."""
    direct: bool
    """By no relay, and that way has answered."""
    answered: bool
    summary: list[PingSummary]
    why: str
    """Why no way was probed; empty: they were."""
    rounds: list[PingAnswer]


class BackedUp(Answered, frozen=True, kw_only=True):
    """`limpet controller backup`."""

    file: str


class Restored(Answered, frozen=True, kw_only=True):
    """`limpet controller restore`."""

    database: str
    former: str | None
    """Where the database is that was there before."""


class Befallen(Answered, frozen=True, kw_only=True):
    """`limpet lab fault`."""

    world: str
    fault: str
    target: str
    restored: bool
    told: list[str]
    """What has become of it, in words."""


class TakenDown(Answered, frozen=True, kw_only=True):
    """`limpet lab down`."""

    world: str
    was_there: bool
