"""The results as a Markdown table and as the CSV of docs/results."""
import csv
import dataclasses

from compare import cases

COLUMNS = ["op", "case", "implementation", "median_us", "gpu", "date", "commit"]  # docs/results/README.md


@dataclasses.dataclass
class Row:
    case: cases.Case
    strata_us: float
    peers_us: dict  # by the peer's name; without those that have no time
    python_us: dict = dataclasses.field(default_factory=dict)  # Strata's calls from Python, by the column's name

    def fastest(self):
        """The name of the fastest peer; None without any."""
        return min(self.peers_us, key=self.peers_us.get, default=None)

    def ratio(self):
        """Strata's time over the fastest peer's; None without any."""
        return self.strata_us / self.peers_us[self.fastest()] if self.peers_us else None


def microseconds(value):
    """Three digits and more: "0.82", "23.9", "1135"."""
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:.0f}"


def markdown(rows, peers):
    """Rows where Strata is slower come first, then those where it is faster, then those without a peer. `peers`: the columns."""
    lines = ["| op | case | " + "".join(f"{peer}, us | " for peer in peers) + "Strata, us | Strata / fastest peer |",
             "|" + "---|" * (4 + len(peers))]
    for row in sorted(rows, key=lambda row: -(row.ratio() or 0)):
        times = [microseconds(row.peers_us[peer]) if peer in row.peers_us else "" for peer in peers]
        ratio = row.ratio()
        cells = [cases.OPS[row.case.op], row.case.name, *times, microseconds(row.strata_us), "" if ratio is None else f"{ratio:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(" ".join(line.split()) for line in lines)


def markdown_python(rows, columns):
    """Strata's calls from Python next to its program."""
    lines = ["| op | case | Strata, us | " + "".join(f"{column}, us | ratio | " for column in columns), "|" + "---|" * (3 + 2 * len(columns))]
    for row in rows:
        cells = [cases.OPS[row.case.op], row.case.name, microseconds(row.strata_us)]
        for column in columns:
            time = row.python_us.get(column)
            cells += ["", ""] if time is None else [microseconds(time), f"{time / row.strata_us:.3f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(" ".join(line.split()) for line in lines)


def write_csv(stream, rows, labels, gpu, date, commit):
    """Two lines of each case: its fastest peer, with its version, and Strata. A case without a peer has none. `labels`: by the peer's name."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        peer = row.fastest()
        if peer is None:
            continue
        for implementation, time in ((labels[peer], row.peers_us[peer]), ("Strata", row.strata_us)):
            writer.writerow([row.case.op, row.case.name, implementation, microseconds(time), gpu, date, commit])
