"""Suggestions for misspelt names, and values in error messages."""

from hadamem.names import close_names, did_you_mean, shorten

KNOWN = ["batch", "time", "memory_size", "popgym/AutoencodeEasy", "popgym/AutoencodeHard"]


def test_did_you_mean():
    assert did_you_mean("batsh", KNOWN) == " did you mean 'batch'?"
    assert did_you_mean("BATCH", KNOWN) == " did you mean 'batch'?"
    assert did_you_mean("zzz", KNOWN) == ""
    assert did_you_mean("popgym/autoencodeeasy", KNOWN, n=2) == " did you mean 'popgym/AutoencodeEasy' or 'popgym/AutoencodeHard'?"


def test_close_names():
    assert close_names("memorysize", dict.fromkeys(KNOWN)) == ["memory_size"]
    assert close_names("x", []) == []
    assert close_names(10**5000, KNOWN) == []


def test_shorten():
    assert shorten("a" * 10) == "'aaaaaaaaaa'"
    assert shorten("a" * 100, 5) == "'aaaa..."
    assert shorten(10**5000) == "a number of 16610 bits"
    assert shorten([10**5000]) == "a list"
