"""Forked children, and processes that end at a bad moment."""

import os
import textwrap

import pytest
import torch
from helper import D, python


def in_child(program) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(program())
        except BaseException:  # noqa: BLE001 - the parent reads the code
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_use_after_fork_is_a_clear_error():
    x = torch.ones(2, device=D).add_(1)
    assert x.sum().item() == 4

    def new_tensor():
        try:
            torch.ones(2, device=D)
        except RuntimeError as e:
            return 0 if "forked subprocess" in str(e) and "spawn" in str(e) else 2
        return 3

    def old_tensor():
        try:
            x.add_(1)
        except RuntimeError as e:
            return 0 if "forked subprocess" in str(e) else 2
        return 3

    def read():
        try:
            x.sum().item()
        except RuntimeError as e:
            return 0 if "forked subprocess" in str(e) else 2
        return 3

    assert in_child(new_tensor) == 0 and in_child(old_tensor) == 0 and in_child(read) == 0
    assert in_child(lambda: int(torch.rsx._is_in_bad_fork() is not True)) == 0
    assert in_child(lambda: int(torch.ones(2).sum().item() != 2)) == 0  # the CPU works in the child
    assert x.sum().item() == 4


def test_dropping_tensors_in_the_child_is_safe():
    tensors = [torch.ones(100, device=D) for _ in range(50)]

    def program():
        tensors.clear()
        return 0

    assert in_child(program) == 0


def test_child_of_a_process_that_only_imported():
    python(
        """
        import os, torch, rsx
        pid = os.fork()
        if pid == 0:
            os._exit(0 if (torch.ones(2, device="rsx") + 1).sum().item() == 4 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert (torch.ones(2, device="rsx") + 1).sum().item() == 4
        """
    )


ENDINGS = {
    "right after backward": """
        net = torch.nn.Linear(64, 64).to("rsx")
        net(torch.ones(8, 64, device="rsx")).sum().backward()
    """,
    "in the middle of a recording": """
        x = torch.ones(64, 64, device="rsx")
        for _ in range(50):
            x = x @ x * 0.01
    """,
    "with work in flight": """
        x = torch.randn(512, 512, device="rsx")
        for _ in range(6):
            x = (x @ x).tanh()
            rsx.mark_step()
    """,
    "with a background compile": """
        net = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(6)]).to("rsx")
        opt = torch.optim.AdamW(net.parameters())
        for _ in range(4):
            opt.zero_grad()
            net(torch.ones(4, 32, device="rsx")).sum().backward()
            opt.step()
    """,
    "by sys.exit": """
        import sys
        x = torch.ones(3, device="rsx") + 1
        sys.exit(0)
    """,
}


EXITS = int(os.environ.get("RSX_TEST_EXITS", "3"))


@pytest.mark.parametrize("ending", ENDINGS)
def test_clean_exit(ending):
    """One process from its start, and some forked from one that has only imported (`RSX_TEST_EXITS=100` takes minutes)."""
    code = textwrap.dedent(ENDINGS[ending])
    run = python("import torch, rsx\n" + code)
    assert "Fatal" not in run.stderr and "Traceback" not in run.stderr, run.stderr
    run = python(
        f"""
        import os, sys, torch, rsx
        code, failed = compile({code!r}, "ending", "exec"), []
        for n in range({EXITS}):
            if os.fork() == 0:
                exec(code, {{"torch": torch, "rsx": rsx}})
                sys.exit()  # the interpreter is taken down as at the end of a program
            if status := os.wait()[1]:
                failed.append((n, status))
        print("failed:", failed)
        """,
        timeout=3600,
    )
    assert run.stdout.splitlines()[-1] == "failed: []", run.stdout + run.stderr
    assert "Fatal" not in run.stderr and "Traceback" not in run.stderr, run.stderr
