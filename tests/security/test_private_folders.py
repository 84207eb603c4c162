"""Folders of ours in places that others write to: this user's alone, whatever lies there and whatever the umask."""

import os
import stat
from zipfile import ZipFile

import pytest

from ezpz.cli import doctor
from ezpz.cluster import cache
from ezpz.errors import MachineError
from ezpz.files import own_folder, own_state_folder, private_folder
from ezpz.launch import record

NOBODY = 65534
PARENTS = (0o755, 0o777, 0o1777)  # the last is that of /tmp


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def places(tmp_path, monkeypatch, open_umask):
    """Return a function that makes new places for temporary files, state and cache, and returns our folders there."""
    numbers = iter(range(1000))

    def make(parent=0o1777):
        here = tmp_path / f"{next(numbers)}"
        for name, variable in (("tmp", "TMPDIR"), ("state", "XDG_STATE_HOME"), ("cache", "XDG_CACHE_HOME")):
            (here / name).mkdir(parents=True)
            (here / name).chmod(parent)
            monkeypatch.setenv(variable, str(here / name))
        monkeypatch.setattr("tempfile.tempdir", str(here / "tmp"))
        return here / "tmp" / f"ezpz-{os.getuid()}", here / "state" / "ezpz", here / "cache" / "ezpz"

    return make


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def in_state():
    return own_state_folder(os.environ, "launches")


def in_cache():
    cache.keep(os.environ, "launchers", {"a": 1})
    return cache.kept(os.environ, "launchers")


def test_what_is_made_is_closed_under_an_open_umask(places):
    for parent in PARENTS:
        temporary, state, kept = places(parent)
        assert private_folder("launches") == str(temporary / "launches")
        assert in_state() == str(state / "launches")
        assert in_cache() == {"a": 1}
        assert {mode(each) for each in (temporary, temporary / "launches", state, state / "launches")} == {0o700}
        assert mode(kept) == 0o755


def test_folders_on_the_way_to_a_new_home_are_closed_too(tmp_path, open_umask):
    own_state_folder({"HOME": str(tmp_path)}, "jobs")
    assert {mode(tmp_path / each) for each in (".local", ".local/state", ".local/state/ezpz/jobs")} == {0o700}


def test_one_of_ours_that_is_too_wide_is_narrowed_and_one_that_is_narrower_stays(places):
    temporary, state, kept = places()
    for folder in (temporary, temporary / "launches", state, state / "launches", kept):
        folder.mkdir(0o777)
    private_folder("launches")
    in_state()
    in_cache()
    assert {mode(each) for each in (temporary, temporary / "launches", state, state / "launches")} == {0o700}
    assert mode(kept) == 0o755
    state.chmod(0o500)
    in_state()
    assert mode(state) == 0o500


def file(place, elsewhere):
    place.write_text("")


def link(place, elsewhere):
    place.symlink_to(elsewhere)


def link_to_nothing(place, elsewhere):
    place.symlink_to(elsewhere / "gone")


def folder_of_another(place, elsewhere):
    place.mkdir(0o777)
    os.chown(place, NOBODY, NOBODY)


def link_of_another(place, elsewhere):
    place.symlink_to(elsewhere)
    os.chown(place, NOBODY, NOBODY, follow_symlinks=False)


def link_to_a_folder_of_another(place, elsewhere):
    os.chown(elsewhere, NOBODY, NOBODY)
    place.symlink_to(elsewhere)


# What lies there, and what is said of it in the temporary folder, in place of the state folder, and of one in that.
IN_THE_WAY = {
    file: ("it is no folder", "it is no folder", "it is no folder"),
    link: ("it is a link", "", "it is a link"),
    link_to_nothing: ("it is a link", "No such file or directory", "it is a link"),
    folder_of_another: ("it belongs to another user",) * 3,
    link_of_another: ("it belongs to another user",) * 3,
    link_to_a_folder_of_another: ("it is a link", "it belongs to another user", "it is a link"),
}


def test_what_is_not_ours_is_refused_with_a_sentence_and_left_alone(places, tmp_path, subtests):
    for number, (lay, (in_temporary, at_base, in_part)) in enumerate(IN_THE_WAY.items()):
        if "another" in lay.__name__ and os.geteuid() != 0:
            continue  # only root gives away
        with subtests.test(lay.__name__):
            elsewhere = tmp_path / f"elsewhere-{number}"
            elsewhere.mkdir()
            temporary, state, _ = places()
            lay(temporary, elsewhere)
            with pytest.raises(MachineError) as refused:
                private_folder("launches")
            assert f"cannot use the temporary folder {temporary} (from TMPDIR): {in_temporary}; expected" in str(
                refused.value
            )
            lay(state, elsewhere)
            if at_base:
                with pytest.raises(OSError, match=at_base):
                    in_state()
                folder, note = record.launch_folder("", "a" * 8, 0.0)
                assert (folder, str(state) in note) == ("", True)
                assert list(elsewhere.iterdir()) == []
            else:  # the user has moved it to a larger disk
                assert in_state() == str(state / "launches")
                assert (mode(elsewhere), mode(elsewhere / "launches")) == (0o700, 0o700)
            temporary, state, _ = places()
            own_folder(str(state))
            lay(state / "launches", elsewhere)
            folder, note = record.launch_folder("", "a" * 8, 0.0)
            assert folder.startswith(str(temporary / "records")), note
            assert f"{state}/launches: {in_part}" in note


def test_answers_that_another_user_has_laid_into_the_cache_are_not_believed(places):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    _, _, kept = places()
    in_cache()
    os.chown(kept / "launchers.json", NOBODY, NOBODY)
    assert cache.kept(os.environ, "launchers") == {}


def test_a_bundle_for_support_is_this_users_alone(places, tmp_path):
    path = tmp_path / "bundle.zip"
    places()
    doctor._write_bundle(path, {"hosts": []})
    assert mode(path) == 0o600
    assert "doctor.json" in ZipFile(path).namelist()
