"""What a config cannot do, what is never unpickled, and where no secret may appear."""

import ast
import json
import logging
import os
import pickle
import sys

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from tape_exp import export
from tape_exp.data.packing import Tokens
from tape_exp.data.sources import Text
from tape_exp.data.tokenizers import load
from tape_exp.launch import status, sweep
from tape_exp.launch.status import last_line
from tape_exp.machine.files import sha256
from tape_exp.paper import runner
from tape_exp.paper.records import warn
from tape_exp.paper.tables import Table, columns, markdown, on_terminal
from tape_exp.runs import loading
from tape_exp.runs.checkpoints import SafeCheckpointIO, newest
from tape_exp.runs.directory import RunDirectory
from tape_exp.runs.weights import signature_of
from tape_exp.settings import targets
from tape_exp.settings.commit import git_state
from tape_exp.settings.compose import compose_config
from tape_exp.settings.construct import build
from tape_exp.settings.errors import ConfigError
from tape_exp.settings.folders import ROOT
from tape_exp.settings.redaction import HIDDEN, RedactingFormatter, is_secret, redact, redact_tree
from tape_exp.settings.schema import check
from tape_exp.settings.targets import PLUGINS, check_targets, refuse_secrets
from tape_exp.training.finished import read_run
from tests.conftest import SMALL
from tests.processes import train

SOURCES = [ROOT / "train.py", *(ROOT / "tape_exp").rglob("*.py"), *(ROOT / "launch").rglob("*.py")]
SECRETS = {
    "WANDB_API_KEY": "0123456789abcdef0123456789abcdef01234567",
    "HF_TOKEN": "hf_PlantedPlantedPlantedPlanted0001",
    "AWS_SECRET_ACCESS_KEY": "planted/aws+secret=value0002",
    "MY_PASSWORD": 'planted"quote\\0003',
    "SLURM_JWT": "planted-slurm-jwt-0007",
    "SLURM_DB_PWD": "planted-slurm-pwd-0008",
    "SLACK_WEBHOOKS": "planted-webhook-0009",
}
TYPED = (
    "planted-in-a-url-0004",
    "hf_PlantedInAnOverride000000005",
    "planted-plain-key-0006",
    "planted-inside-0010",
)


class Booby:
    """A pickle that leaves a file behind when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["+hydra.callbacks.x._target_=os.system"],
            r"hydra\.callbacks\.x\._target_=os\.system is not permitted",
        ),
        (
            ["+hydra.callbacks.x._target_=tape_exp.runs.directory.subprocess.Popen"],
            r"hydra\.callbacks\.x\._target_=.* is not permitted",
        ),
        (
            ["hydra.launcher._target_=os.system"],
            r"hydra\.launcher\._target_=os\.system is not permitted",
        ),
        (
            ["hydra.sweeper._target_=shutil.rmtree"],
            r"hydra\.sweeper\._target_=shutil\.rmtree is not permitted",
        ),
        (["+hydra.launcher.inner._target_=os.system"], r"hydra\.launcher\.inner\._target_"),
        (["+hydra.callbacks.x=${task}"], r"hydra\.callbacks\.x=\$\{task\} stands for a whole node"),
        (["hydra.callbacks=${task}"], r"hydra\.callbacks=\$\{task\} stands for a whole node"),
        (
            ["+hydra.callbacks.x='${oc.select:no,{_target_: os.system}}'"],
            r"hydra\.callbacks\.x makes a _target_ by an",
        ),
        (["+hydra.callbacks.x={_target_: os.system}"], r"hydra\.callbacks\.x\._target_=os\.system"),
        (
            ["+hydra.callbacks.x={_target_: '${task.name}'}"],
            r"hydra\.callbacks\.x\._target_=.* by an interpolation",
        ),
        (
            ["+hydra.job_logging={handlers: {x: {class: logging.os.system}}}"],
            r"\.class=logging\.os\.system is not permitted",
        ),
        (
            ["task._target_=os.system"],
            r"task\._target_=os\.system must name a class inside tape_exp",
        ),
        (
            ["+task.inner._target_=os.system"],
            r"task\.inner\._target_=os\.system must name a class inside tape_exp",
        ),
        (
            ["+scale.list=[{_target_: os.system}]"],
            r"scale\.list\.0\._target_=os\.system must name a class inside tape_exp",
        ),
    ],
)
def test_a_config_that_would_call_something_is_refused_as_it_is_composed(overrides, message):
    with pytest.raises(ConfigError, match=message) as error:
        compose_config(overrides)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"job": {"env_set": {"GIT_CONFIG_COUNT": "1"}}}, r"job\.env_set sets variables"),
        ({"job": {"env_copy": ["GIT_DIR"]}}, r"job\.env_copy sets variables"),
        ({"job_logging": {"x": {"class": "logging.FileHandler"}}}, r"FileHandler is not permitted"),
        (
            {"hydra_logging": {"x": {"stream": "ext://os.system"}}},
            r"stream=ext://os\.system is not",
        ),
        ({"hydra_logging": {"x": ["cfg://root"]}}, r"x\.0=cfg://root is not permitted"),
        (
            {"job_logging": {"x": "${hydra.name}://os"}},
            r"x=\$\{hydra\.name\}://os is not permitted",
        ),
    ],
)
def test_hydra_sets_no_variables_and_logs_to_no_files(node, message):
    with pytest.raises(ConfigError, match=message):
        check_targets(OmegaConf.create({"hydra": node}))
    stream = {"class": "logging.StreamHandler", "stream": "ext://sys.stderr"}
    permitted = {"job": {"env_set": {}, "env_copy": []}, "job_logging": {"x": stream}}
    check_targets(OmegaConf.create({"hydra": permitted}))


def test_a_mistake_has_no_traceback_with_debug_either():
    refused = train("debug=one_batch", "task.trian_digits=2")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.startswith("error: task.trian_digits is not known")


def test_steps_that_debug_replaces_are_refused():
    refused = train("debug=overfit", "task.optim.max_steps=5")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.endswith("give debug.max_steps=5.\n")


def test_hydra_writes_no_config(tmp_path):
    refused = train(f"hydra.run.dir={tmp_path}", "hydra.output_subdir=.hydra", "debug=plan")
    assert refused.returncode == 2
    assert "hydra.output_subdir=.hydra would write the config" in refused.stderr
    assert not list(tmp_path.iterdir())


def test_a_terminal_gets_no_control_characters(tmp_path, capsys):
    harm = "\x1b]0;title\x07\x1b[2J\x9b31m"
    assert str(ConfigError(f"a{harm}\nb")) == "a\\x1b]0;title\\x07\\x1b[2J\\x9b31m b"
    record = logging.LogRecord("x", logging.ERROR, "", 0, "%s\n\tü", (harm,), None)
    told = RedactingFormatter("%(message)s").format(record)
    assert told.endswith("m\n\tü")
    assert told.replace("\n\t", "").isprintable()
    (tmp_path / "FAILED").write_text(f"Traceback\nError: {harm}\n")
    assert last_line(tmp_path / "FAILED").isprintable()
    warn(f"the record {harm} is left out")
    runner.status(runner.Outcome([harm]))
    table = Table(columns(["model"]), [{"model": harm}], f"A caption {harm}")
    print(markdown(table), on_terminal(table, 80))
    for stream in capsys.readouterr():
        assert "x1b[2J" in stream
        assert stream.replace("\n", "").isprintable()


def test_a_word_of_a_sweep_with_control_characters_is_written_out(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(status, "states", lambda name: {})
    (folder := tmp_path / ".sweeps" / "one").mkdir(parents=True)
    shared, own = (f"""'logger.{key}="a\x1b[2J"'""" for key in ("notes", "entity"))
    (folder / "jobs.txt").write_text(f"{shared}\n{shared} {own}\n")
    assert status.main(["--runs", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert told.count("\\x1b[2J") == 2
    assert told.replace("\n", "").isprintable()


def test_variables_in_a_yaml_of_another_folder_are_refused(tmp_path):
    (tmp_path / "task").mkdir()
    yaml = tmp_path / "task" / "theirs.yaml"
    yaml.write_text("# @package _global_\nhydra: {job: {env_set: {GIT_DIR: x}}}\n")
    refused = train(f"--config-dir={tmp_path}", "task=theirs", "debug=plan")
    assert refused.returncode == 2
    assert "error: hydra.job.env_set sets variables" in refused.stderr


@pytest.mark.parametrize("place", ["environment", "file"])
def test_asking_git_for_the_commit_runs_no_program(tmp_path, monkeypatch, place):
    program = f"touch {tmp_path}/sprung; false"
    if place == "file":
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
        (tmp_path / ".gitconfig").write_text(f'[core]\nfsmonitor = "{program}"\n')
    else:
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.fsmonitor")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", program)
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    git_state()
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "trace").exists()


def test_a_factory_of_a_logging_handler_is_refused():
    with pytest.raises(
        ConfigError, match=r"hydra\.job_logging\.handlers\.x\.\(\)=os\.system is not permitted"
    ):
        check_targets(
            OmegaConf.create({"hydra": {"job_logging": {"handlers": {"x": {"()": "os.system"}}}}})
        )


@pytest.mark.parametrize("launcher", ["basic", "submitit_local", "submitit_slurm"])
def test_the_launchers_that_are_named_are_permitted(launcher):
    if launcher != "basic":
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    compose_config([])  # which guards Hydra
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", [f"hydra/launcher={launcher}"], return_hydra_config=True)
    assert cfg.hydra.launcher._target_ in PLUGINS


def test_a_launcher_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(targets, "find_spec", lambda name: None)
    targets.require_launcher(PLUGINS[0])
    with pytest.raises(ConfigError, match="needs the package hydra-submitit-launcher"):
        targets.require_launcher(PLUGINS[-1])


@pytest.mark.parametrize(
    ("section", "target", "message"),
    [
        (
            "task",
            "tape_exp.runs.directory.subprocess.Popen",
            "must name a class inside tape_exp.tasks",
        ),
        ("task", "tape_exp.runs.directory.RunDirectory", "must name a class inside tape_exp.tasks"),
        (
            "task",
            "tape_exp.tasks.base.Path",
            "must name a class that is defined in tape_exp.tasks.base",
        ),
        ("task", "tape_exp.tasks.base.torch.nn.Linear", "cannot be loaded"),
        ("task", "tape_exp.tasks.base.share", "must name a class that is defined in"),
        ("task", "tape_exp.tasks..base.Task", "cannot be loaded"),
        (
            "model",
            "tape_exp.tasks.arithmetic.Arithmetic",
            "must name a class inside tape_exp.models.positions",
        ),
        (
            "peft",
            "tape_exp.models.peft.LoraConfig",
            "must name a class that is defined in|cannot be loaded",
        ),
        ("conf/paper/x.yaml", "tape_exp.demo.main", "must name a class inside tape_exp.paper"),
        ("model", None, "must name a class inside tape_exp.models.positions, as conf/model/"),
    ],
)
def test_only_a_class_defined_in_its_part_of_the_package_is_constructed(section, target, message):
    with pytest.raises(ConfigError, match=message) as error:
        build({"_target_": target}, section)
    assert "\n" not in str(error.value)


def test_resolvers_that_make_nodes_from_text_are_gone_and_environment_secrets_unread(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRETS["HF_TOKEN"])
    monkeypatch.setenv("SCRATCH", "/scratch/me")
    assert compose_config(["runs=${oc.env:SCRATCH}/runs"]).runs == "/scratch/me/runs"
    assert compose_config(["runs=${oc.env:NO_SUCH_PLACE,here}"]).runs == "here"
    for text, message in (
        ("${oc.env:HF_TOKEN}", "clients of the hub"),
        ("${oc.env:NO_SUCH_PLACE}", "is not set"),
        ("${oc.decode:'{a: 1}'}", "Unsupported interpolation type oc.decode"),
        ("${oc.create:'{a: 1}'}", "Unsupported interpolation type oc.create"),
    ):
        cfg = compose_config([f'task.name="{text}"'])
        with pytest.raises(Exception, match=message) as error:
            print(cfg.task.name)
        assert SECRETS["HF_TOKEN"] not in str(error.value)


@pytest.mark.parametrize("key", ["task.name", "model.name", "scale.name", "peft.name"])
@pytest.mark.parametrize("value", ["../../x", "/etc", "..", "a/b", "", ".hidden", "a\\\\b"])
def test_names_that_lead_elsewhere_are_refused(key, value):
    with pytest.raises(ConfigError, match=rf"{key}=.* becomes a folder's name"):
        check(compose_config([f'{key}="{value}"']))


def test_a_text_name_cannot_lead_out_of_the_cache():
    with pytest.raises(ConfigError, match=r"text\.name=\.\./x becomes a folder's name"):
        Text("../x")


def test_a_link_below_runs_is_refused_and_a_link_to_runs_is_not(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "arithmetic").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "runs")
    own = RunDirectory(compose_config([f"runs={tmp_path}/linked", "model=rope"])).path
    assert own.is_relative_to(tmp_path / "runs")
    (tmp_path / "runs" / "arithmetic" / "smoke").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="leads out of runs="):
        RunDirectory(compose_config([f"runs={tmp_path}/runs", "model=rope"]))


def test_no_source_unpickles_evaluates_or_calls_a_shell():
    wrong = {
        f"{path.relative_to(ROOT)}:{line} {what}"
        for path in SOURCES
        for line, what in dangers(path.read_text())
    }
    assert len(SOURCES) > 50
    assert not wrong


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "eval(text)",
        "exec(text)",
        "__import__(name)",
        "yaml.load(text)",
        "yaml.unsafe_load(text)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(command, shell=True)",
        "os.system(command)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
        "hydra.utils.instantiate(cfg)",
    ],
)
def test_the_search_of_the_sources_finds(code):
    assert list(dangers(code))


def dangers(code):
    """(line, what) of everything in Python source that could run what a file or a config says."""
    modules = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    calls = {
        "eval",
        "exec",
        "__import__",
        "os.system",
        "os.popen",
        "yaml.load",
        "yaml.unsafe_load",
        "yaml.full_load",
    }
    calls |= {
        "instantiate",
        "hydra.utils.instantiate",
        "get_class",
        "get_method",
        "hydra.utils.get_class",
        "pd.read_pickle",
    }
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else [alias.name for alias in node.names]
            )
            yield from ((node.lineno, name) for name in names if name.split(".")[0] in modules)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            safe = name != "torch.load" or options.get("weights_only") == "True"
            flags = [
                flag
                for flag in ("shell", "allow_pickle", "trust_remote_code")
                if options.get(flag, "False") != "False"
            ]
            if name in calls or not safe or flags:
                yield node.lineno, ast.unparse(node)


def test_pickles_are_never_unpickled(tmp_path, tiny_run):
    trap = tmp_path / "sprung"
    payload = pickle.dumps({"state_dict": Booby(trap)})
    cfg, _ = tiny_run(steps=2)
    run = RunDirectory(cfg)

    planted = tmp_path / "planted.ckpt"
    planted.write_bytes(payload)
    with pytest.raises(ConfigError, match="not a readable checkpoint"):
        loading.load_weights(None, planted)
    torch.save({"state_dict": Booby(trap)}, planted)
    with pytest.raises(ConfigError, match="not a readable checkpoint"):
        loading.load_weights(None, planted)

    resumed = run.checkpoints / "step00000009.ckpt"  # even with a right signature
    torch.save({"state_dict": Booby(trap)}, resumed)
    signature = {"sha256": sha256(resumed), "config_hash": run.hash, "step": 9}
    signature_of(resumed).write_text(json.dumps(signature))
    assert newest(run.checkpoints, run.hash) == (resumed, 9)
    with pytest.raises(pickle.UnpicklingError):
        SafeCheckpointIO().load_checkpoint(resumed, weights_only=False)

    np.save(tmp_path / "sizes.npy", np.array([Booby(trap)], dtype=object), allow_pickle=True)
    np.zeros(4, dtype=np.uint16).tofile(tmp_path / "0.bin")
    shard = {"file": "0.bin", "sizes": "sizes.npy", "dtype": "uint16"}
    shard |= {"tokens": 4, "documents": 1, "bytes": 4, "skipped": 0}
    with pytest.raises(ValueError, match="allow_pickle"):
        Tokens(tmp_path, [shard]).bytes(lambda ids: "")

    (tmp_path / "tokenizer.json").write_bytes(payload)
    with pytest.raises(ConfigError):
        load(tmp_path / "tokenizer.json", "<s>", "</s>")
    (run.path / "record.json").write_bytes(payload)
    with pytest.raises(ValueError, match=r"decode|JSON|Expecting"):
        run.record()
    assert not trap.exists()
    pickle.loads(payload)  # the trap works
    assert trap.exists()


def test_a_yaml_of_a_run_has_no_aliases(tmp_path):
    """Eight lines of them stand for 10^8 values."""
    lines = [
        "a0: &a0 [1]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)),
    ]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(
        ConfigError, match=r"config\.yaml cannot be read \(line 2 has the alias \*a0"
    ):
        read_run(tmp_path)


def test_a_yaml_of_a_run_cannot_construct(tmp_path):
    (tmp_path / "config.yaml").write_text(
        "a: !!python/object/apply:os.mkdir ['%s']\n" % (tmp_path / "sprung")
    )
    with pytest.raises(Exception, match="could not determine a constructor"):
        OmegaConf.load(tmp_path / "config.yaml")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "text",
    [
        "https://me:planted-1234@host/path",
        "s3://planted-1234@bucket",
        "task.text.hf_token=planted-1234",
        "api_key='planted-1234'",
        '{"password": "planted-1234"}',
        "https://host/path?access_token=planted-1234&x=1",
        "Authorization: Bearer planted-1234",
        "+scale.d={secret: planted-1234}",
        "+scale.d=[{a: 1,my_token:'planted-1234'}]",
        "-----BEGIN PRIVATE KEY-----\nplanted-1234\n-----END PRIVATE KEY-----",
    ],
)
def test_secrets_are_hidden_by_their_place(text):
    assert "planted-1234" not in redact(text)
    assert HIDDEN in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "Ab1" * 8,
        "sk-" + "ab1" * 8,
        "ghp_" + "a1" * 12,
        "AKIA" + "A1B2" * 4,
        "0f" * 20,
        "wandb_v1_" + "a1" * 12,
    ],
)
def test_secrets_are_hidden_by_their_shape(secret):
    for text in (f"failed with {secret}.", f"('{secret}')", f"a,{secret}\n"):
        assert secret not in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "task.windows.tokens=500 task.tokenizer.kind=bpe task=passkey task.new_tokens=8",
        "task.text.revision=" + "0f" * 20,
        "cache/models--x/snapshots/" + "0f" * 20 + "/config.json",
        "https://huggingface.co/datasets/x?download=true",
        "train/tokens_per_second 3.5, monkey=1, author: me@example.com",
        "/scratch/keys/token.txt runs=/a/b@c",
        "${oc.env:SCRATCH}",
    ],
)
def test_what_is_no_secret_stays(text):
    assert redact(text) == text


def test_names_of_secrets():
    for name in (
        "HF_TOKEN",
        "WANDB_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "token",
        "api_key",
        "task.text.token",
        "SLURM_JWT",
        "DB_PWD",
        "passwords",
        "git_creds",
        "SLACK_WEBHOOK_URL",
        "api_keys",
        "access_tokens",
    ):
        assert is_secret(name), name
        assert HIDDEN in redact(f"{name}=planted-1234")
    for name in (
        "PWD",
        "new_tokens",
        "tokens",
        "tokenizer",
        "HF_TOKEN_PATH",
        "SSH_AUTH_SOCK",
        "TOKENIZERS_PARALLELISM",
        "key_heads_",
        "monkey",
    ):
        assert not is_secret(name) or name == "key_heads_", name


def test_every_config_of_ours_is_written_as_it_is():
    for task in ("arithmetic", "c4", "passkey", "benchmarks", "scrolls", "extend"):
        told = OmegaConf.to_container(compose_config([f"task={task}", "scale=paper"]), resolve=True)
        assert redact_tree(told) == told


def test_a_log_line_and_its_traceback_hide_the_environments_secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    try:
        raise RuntimeError(f"refused {list(SECRETS.values())} for {SECRETS['MY_PASSWORD']}")
    except RuntimeError:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "sent %s", (SECRETS["HF_TOKEN"],), sys.exc_info()
        )
    line = RedactingFormatter("%(message)s").format(record)
    assert "RuntimeError" in line
    for value in SECRETS.values():
        assert value not in line
        assert repr(value)[1:-1] not in line


def test_a_sweep_refuses_secrets_and_hydra_its_pickles():
    refuse_secrets(["model=rope,tape", "task.windows.tokens=5"])
    with pytest.raises(
        ConfigError, match=r"\+task\.text\.token holds a secret, and a sweep writes"
    ):
        refuse_secrets(["model=rope", "+task.text.token=abc"])
    refused = train("-m", "model=rope,tape", f"logger.entity={TYPED[1]}")
    assert refused.returncode == 2
    assert "logger.entity holds a secret" in refused.stderr
    assert TYPED[1] not in refused.stdout + refused.stderr
    refused = train("--experimental-rerun", "job.pickle")
    assert refused.returncode == 2
    assert "unpickles" in refused.stderr


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("--cfg job", 0),
        ("--cfg job --package task.api_key", 0),
        ("--cfg all", 0),
        ("--cfg=hydra", 0),
        ("--cfg hydra hydra/launcher=slurm", 0),
        ("--info config", 0),
        ("--hydra-help", 0),
        ("--help", 0),
        ("-m --cfg job", 2),
        ("--cfg nothing", 2),
        ("--info", 2),
        ("--resolve", 2),
        ("--shell-completion", 2),
        ("--unknown", 2),
        ("--unknown --api_key=planted-plain-key-0006", 2),
    ],
)
def test_what_hydra_shows_holds_no_secret_and_no_traceback(words, status):
    planted = [
        f"+task.api_key={TYPED[2]}",
        f"+task.note={TYPED[1]}",
        f"+task.d={{key: {TYPED[3]}}}",
    ]
    shown = train(*words.split(), *planted, environment={"HF_TOKEN": SECRETS["HF_TOKEN"]})
    assert shown.returncode == status, shown.stderr
    assert not any(secret in shown.stdout + shown.stderr for secret in TYPED)
    if status:
        assert not shown.stdout
        assert shown.stderr.startswith("error: ")
        assert shown.stderr.count("\n") == 1
    else:
        assert not shown.stderr
        assert (HIDDEN in shown.stdout) == ("help" not in words)


@pytest.mark.parametrize("main", [sweep.main, status.main, export.main])
def test_what_the_options_of_a_command_refuse_is_told_without_secrets(main, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["a", "b", f"--api-key={TYPED[2]}", "--x=\x1b[31m\nnext"])
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert TYPED[2] not in told
    assert "\x1b" not in told
    assert "--x=\\x1b[31m next" in told


@pytest.mark.parametrize("key", ["runs", "cache", "checkpoint"])
def test_a_place_with_control_characters_is_refused(key):
    with pytest.raises(ConfigError, match=rf"{key}='a.nb' holds a line break") as error:
        check(compose_config([f"{key}='a\nb'"]))
    assert "\n" not in str(error.value)


def test_wandbs_own_keys_hold_no_secret():
    for key in ("entity", "project"):
        with pytest.raises(ConfigError, match=rf"logger\.{key} holds a secret") as error:
            check(compose_config([f"logger.{key}={TYPED[1]}"]))
        assert TYPED[1] not in str(error.value)


@pytest.mark.parametrize(
    "word",
    [
        f"+scale.note={TYPED[1]}",
        f"+scale.api_key={TYPED[2]}",
        f"+scale.d={{secret: {TYPED[3]}}}",
    ],
)
def test_a_refused_word_is_told_without_its_secret(word):
    with pytest.raises(ConfigError, match="changes nothing") as error:
        check(compose_config([word]))
    assert not any(secret in redact(str(error.value)) for secret in TYPED)


@pytest.mark.parametrize("fails", [False, True], ids=["done", "failed"])
def test_planted_secrets_appear_nowhere(tmp_path, fails):
    words = [
        *SMALL,
        "task.train_digits=2",
        "task.test_digits=3",
        "task.samples_per_cell=2",
        "task.optim.max_steps=2",
    ]
    words += [
        "model=rope",
        "trainer=cpu",
        f"runs={tmp_path}/runs",
        "logger=wandb",
        "logger.mode=offline",
    ]
    words += [f"scale.text=https://me:{TYPED[0]}@host/x"]
    words += ["task.optim.lr=1000", "task.optim.weight_decay=1e30"] if fails else []
    environment = {"WANDB_MODE": "offline", "SLURM_JOB_ID": "12", **SECRETS}
    done = train(*words, environment=environment)
    (run,) = (path.parent for path in (tmp_path / "runs").rglob("manifest.json"))
    assert (run / ("FAILED" if fails else "DONE")).exists(), done.stderr
    assert list(run.rglob("*.wandb"))
    told = {"stdout": done.stdout.encode(), "stderr": done.stderr.encode()}
    told |= {
        str(path.relative_to(tmp_path)): path.read_bytes()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    forms = [
        form for value in (*SECRETS.values(), *TYPED) for form in {value, json.dumps(value)[1:-1]}
    ]
    found = {
        (name, form) for name, content in told.items() for form in forms if form.encode() in content
    }
    assert not found
    assert HIDDEN in (run / "manifest.json").read_text()
    assert HIDDEN in (run / "config.yaml").read_text()
