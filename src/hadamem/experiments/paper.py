"""Numbers that the paper prints, as far as they are known here, to stand beside ours."""

from __future__ import annotations

# POPGym, mean return at the end of training x 100. Cells that are not listed are not known here.
POPGYM = {
    "shm": {"Autoencode-Easy": 49.5, "Autoencode-Medium": -28.8, "Autoencode-Hard": -43.9, "Battleship-Easy": -12.3,
            "Concentration-Easy": -1.9, "Concentration-Medium": -21.0, "Concentration-Hard": -83.3,
            "RepeatPrevious-Easy": 88.9, "RepeatPrevious-Medium": 48.2, "RepeatPrevious-Hard": -19.4},
    "gru": {"Autoencode-Easy": -37.9, "RepeatPrevious-Easy": 99.9, "RepeatPrevious-Medium": -34.7},
    "ffm": {"Autoencode-Easy": -32.7, "Concentration-Easy": 10.7},
}
POPGYM_STD = {                                            # over its three seeds, as far as they are known here
    "shm": {"Autoencode-Easy": 23.3, "RepeatPrevious-Easy": 11.1, "RepeatPrevious-Hard": 9.9},
    "gru": {"RepeatPrevious-Easy": 0.0},
    "ffm": {"Autoencode-Easy": 0.6},
}
POPGYM_AVERAGES = {"shm": -5.1, "gru": -28.4, "ffm": -24.2}      # over the 12 tasks, as printed

# Visual Match, success in percent at the end of training. SHM's is a word, "near-perfect", and no number.
CREDIT = {"ffm": {"Visual Match, 250": 77.0, "Visual Match, 500": 25.0}}

SAME = {"shm-paper": "shm", "shm-release": "shm"}      # forms of a memory that the paper has under one name


def find(task: str, memory: str) -> float | None:
    """The paper's number for a cell; None: not known here."""
    name = SAME.get(memory, memory)
    return POPGYM.get(name, {}).get(task, CREDIT.get(name, {}).get(task))


def find_std(task: str, memory: str) -> float | None:
    """The standard deviation over seeds that the paper prints for a cell; None: not known here."""
    return POPGYM_STD.get(SAME.get(memory, memory), {}).get(task)


# Where the paper and its published code differ, and what is done here. Shown in reports.
DIFFERENCES = (
    ("theta rows", "a random one at each step", "POPGym: row 0; meta-RL: random", "`shm`, `shm-release`: row 0; `shm-paper`: random"),
    ("rows when learning", "not mentioned", "redrawn at each pass", "those of acting, since they follow from the state"),
    ("Algorithm 1", "parallel form with a division by products of C", "a loop", "an exact scan without division"),
    ("limit on M", "none", "100 in meta-RL, none elsewhere", "1e8 in `shm`, never met so far"),
    ("keys and queries", "neural networks", "relu, divided by their sum", "as in the code"),
    ("shortcut", "the output is M q alone", "a linear map of the current input is added", "as in the code; `shortcut=False`: none"),
    ("layers around M", "128, 64, H, 64 units", "also LayerNorm on the input and a projection to 1,024", "as in the code"),
    ("H in POPGym", "128", "script: 72; examples of its README for Hard tasks: 32", "128 for all tasks"),
    ("GRU's size in POPGym", "256", "script: 64 unless told otherwise", "256"),
    ("network in POPGym", "POPGym's code base", "other layers and inputs", "not comparable with POPGym's tables; best: wider layers"),
    ("episodes in POPGym", "up to 1,024 steps", "the longest of the 12 tasks has 311", "as in the code"),
    ("time encoding", "not mentioned", "for SHM alone", "fair: for all memories; release: as in the code"),
    ("inputs", "observation and previous action", "POPGym: observation alone; Point Robot: reward, no action", "fair: both for all"),
    ("gradient clipping", "recommended", "none", "fair: norm 0.5; release: none"),
    ("actor's memory", "the same as the critic's", "meta-RL: a GRU for every model", "fair: the same; release: a GRU"),
    ("mLSTM", "a recurrent baseline", "without recurrence in training", "recurrent"),
    ("state sizes", "512 elements for all", "64 to 40,960", "the study memory-elements lists them"),
    ("batch in meta-RL", "32 sequences", "Wind 64, Point Robot 32", "as in the code"),
    ("Point Robot", "goals in a square of 20 x 20, radius 0.01", "goals on a half circle of radius 1, 0.05 around them", "as in the code"),
    ("Point Robot's episodes", "100 steps", "two of 100 steps each, one after the other", "as in the code"),
    ("layers in meta-RL", "three of 128, then the memory", "embeddings of 8, 32 and 8, the memory, then two of 128", "as in the code"),
    ("tasks in meta-RL", "five runs with standard deviations", "seed 1337 draws tasks and split in every run: the deviations are too small",
     "fair: from the run's seed; release: as in the code"),
    ("env steps in meta-RL", "500,000", "Wind 510,000, Point Robot 1,080,000", "as in the code"),
    ("credit assignment", "both games reported", "no settings published", "those of pomdp-baselines, which the text fits"),
    ("scores", "return at the end of training", "no evaluation; mean return while training", "mean of the last ten iterations; the best"),
    ("FFM's average", "-24.2", "", "the printed rows average to -23.7; two of them are identical, so one is likely a slip"),
    ("what made the tables", "not said", "no commit and no flags named", "this list is about the released code; those runs may differ"),
)
