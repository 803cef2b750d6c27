"""`jax2tf-bridge inspect DIR`: a SavedModel as text, as JSON and as a page."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import export, inspect, write_function, write_weights

# Private: charts of sizes and labels that models in tests do not have.
from jax2tf_bridge.cli import _inspect
from jax2tf_bridge.cli._html import (
    Fold,
    Page,
    PageRequest,
    PageTable,
    draw_bars,
    render,
    take_largest,
)
from jax2tf_bridge.targets import TENSORFLOW_RELEASES
from tests.cli.conftest import Ok, Run
from tests.cli.directory_schema import DIRECTORY_SCHEMA
from tests.cli.json_fields import assert_fits
from tests.saved_model.by_hand import FLOAT32, Call, Model, differentiable, preventing

SINE = export(jnp.sin, platforms=["cpu"], polymorphic_shapes="(b, _)")(np.ones((4, 3), np.float32))
HOSTILE = '<script>alert("x")</script><img src=//e.org/a.png>\x1b[31m'


def call(module: bytes = SINE.module.data, arguments: int = 1) -> bytes:
    return Call(module, platforms=["CPU"], arguments=[FLOAT32] * arguments).node()


def model(**more: Any) -> Model:
    return Model(
        {
            "main": [call(), differentiable("d", "kind")],
            "vjp": [call(SINE.vjp().module.data, 2), preventing("the end")],
        },
        gradients={"kind": "vjp"},
        variables={"w": (2, 3)},
        methods={"f": "main"},
        **more,
    )


@pytest.fixture
def sine(tmp_path: Path) -> Path:
    folder = model().write(tmp_path / "sine")
    (folder / "variables" / "variables.index").unlink()
    return folder


def test_text(ok: Ok, sine: Path) -> None:
    size = (sine / "saved_model.pb").stat().st_size
    module, vjp = len(SINE.module.data), len(SINE.vjp().module.data)
    text = ok("inspect", "sine", "--ops", "0")
    head, _, rest = text.partition("\nsignature ")
    assert head.startswith(
        "sine, a SavedModel written by TensorFlow 2.21.0\n"
        "\n"
        "error: Files of the model are missing: variables/variables.index. Loading it fails.\n"
        "  Copy the whole folder, or save the model again.\n"
        "warning: serving_default is compiled anew for each size of x, in the middle of the first "
        "request that has it.\n"
        "  save(..., buckets={...}) pads to few sizes, and writes warm-up requests for each.\n"
        "note: 2 modules are for the CPU alone"
    )
    assert "note: serving_default, f: gradients are stored to order 1, and then: the end.\n" in head
    assert rest.startswith(
        "serving_default(x: float32[?,3]) -> (y: float32[?,3]); gradients to order 1\n"
        "methods:   f\n"
        "runs on:   TensorFlow 2.15 to 2.22\n"
        "platforms: cpu\n"
        "variables: 1, 24 bytes; the largest is w, float32[2,3]\n"
        f"graph:     {size:,} bytes in saved_model.pb\n"
        "\n"
        "module 0, main, run by serving_default, f\n"
        f"  {module:,} bytes ("
    )
    assert f"\nmodule 1, vjp, gradient of order 1\n  {vjp:,} bytes (" in rest
    assert "  (float32[?,3]) -> (float32[?,3])\n" in rest
    assert "  custom calls: 1 shape_assertion\n" in rest


def test_the_function_returns_what_the_command_prints(ok: Ok, sine: Path) -> None:
    inspection = inspect(sine)
    assert f"{inspection.text(3)}\n" == ok("inspect", str(sine), "--ops", "3")
    assert f"{inspection}\n" == ok("inspect", str(sine))
    assert inspection.as_json() == json.loads(ok("inspect", str(sine), "--json"))
    assert inspection.kind == "SavedModel"
    assert inspection.tensorflow[-1:] == (list(TENSORFLOW_RELEASES)[-1],)
    (finding, *_) = inspection.findings
    assert f"{finding.severity}: {finding.text}" in str(inspection).splitlines()
    assert len(inspection.modules) == 2


def test_the_function_describes_files(ok: Ok, tmp_path: Path) -> None:
    write_function(tmp_path / "sine.jaxfn", SINE)
    write_weights(tmp_path / "weights.msgpack", {"w": np.ones((2, 3), np.float32)})
    for file, kind in (("sine.jaxfn", "function"), ("weights.msgpack", "weights")):
        inspection = inspect(tmp_path / file)
        assert inspection.kind == kind
        assert inspection.findings == ()
        path = str(tmp_path / file)
        assert f"{inspection}\n" == ok("inspect", path)
        assert inspection.as_json() == json.loads(ok("inspect", path, "--json"))


def test_json_keeps_its_schema(ok: Ok, sine: Path) -> None:
    (sine / "assets.extra").mkdir()
    (sine / "assets.extra" / "tf_serving_warmup_requests").write_bytes(bytes(16))
    facts = json.loads(ok("inspect", "sine", "--json"))
    assert_fits(facts, DIRECTORY_SCHEMA, "")
    assert facts["schema"] == 1
    assert facts["warm_up"] == {"requests": 1, "bytes": 16, "problem": None}
    (signature,) = facts["signatures"]
    x = {"name": "x", "dtype": "float32", "shape": [None, 3], "tensor": "x", "has_default": False}
    assert signature["inputs"] == [x]
    assert signature["modules"] == [{"module": 0, "order": 0}, {"module": 1, "order": 1}]
    assert facts["modules"][0]["arguments"] == ["float32[?,3]"]


def sidecar(folder: Path, shape: str = "(b, 3)", portable: str = "sine.jaxfn") -> None:
    (folder / "assets.extra").mkdir()
    port = {"path": "x", "dtype": "float32", "shape": shape}
    signature = {
        "record": portable,
        "inputs": {"x": port},
        "outputs": {"y": port},
        "buckets": {"b": [1, 8]},
    }
    facts = {"format": 1, "bridge": "9.9", "signatures": {"serving_default": signature}}
    (folder / "assets.extra" / "jax2tf_bridge.json").write_text(json.dumps(facts))


def test_what_the_bridge_knew_of_its_own_model(ok: Ok, sine: Path) -> None:
    from jax2tf_bridge.serialization import write_function

    sidecar(sine)
    portables = sine / "assets.extra" / "jax2tf_bridge"
    portables.mkdir()
    write_function(portables / "sine.jaxfn", SINE, vjp_order=1)
    text = ok("inspect", "sine")
    assert "sine, a SavedModel written by jax2tf-bridge 9.9 with TensorFlow 2.21.0\n" in text
    assert "signature serving_default(x: float32[b,3]) -> (y: float32[b,3])" in text
    assert "; buckets b 1, 8\n" in text
    assert "  (float32[b,3]) -> (float32[b,3])\n" in text
    assert "waits for the compiler" in text
    facts = json.loads(ok("inspect", "sine", "--json"))
    assert facts["modules"][0]["sizes"] == {
        "variables": ["b"],
        "constraints": [],
        "requirements": [],
    }
    (portables / "sine.jaxfn").write_bytes(b"damaged")
    assert "warning: A function beside the model cannot be read: " in ok("inspect", "sine")


@pytest.mark.parametrize("shape", ["", "(b", "(a, b, c)", "x" * 5000, "((,)"])
def test_a_sidecar_that_says_something_else(ok: Ok, sine: Path, shape: str) -> None:
    sidecar(sine, shape, "../../../etc/passwd")
    text = ok("inspect", "sine")
    assert "signature serving_default(x: float32[?,3]) -> (y: float32[?,3])" in text


class Elements(HTMLParser):
    """Elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = self.style = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "line", "rect"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["style"]:
            self.style += data
        else:
            self.text += data


def assert_stands_alone(page: str) -> Elements:
    """Nothing is loaded from elsewhere, and nothing runs."""
    elements = Elements(page)
    assert elements.open == []
    tags = {tag for tag, _ in elements.found}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "a", "form", "base"})
    for _, attributes in elements.found:
        for name, value in attributes.items():
            assert not name.startswith("on")
            assert name not in {"src", "href", "xlink:href", "style"}
            assert "url(" not in (value or "")
    for part in ("@import", "url(", "//"):
        assert part not in elements.style
    assert "default-src 'none'" in page
    return elements


@pytest.mark.slow
def test_another_process_prints_the_modules(ok: Ok, sine: Path) -> None:
    ok("inspect", "sine", "--html", "page.html")
    assert "func.func public @main" in Elements(Path("page.html").read_text()).text


@pytest.mark.usefixtures("prints_here")
def test_a_page(ok: Ok, sine: Path) -> None:
    assert ok("inspect", "sine", "--html", "page.html") == "page.html: a page about sine\n"
    page = Path("page.html").read_text()
    elements = assert_stands_alone(page)
    assert page.startswith("<!DOCTYPE html>\n")
    assert ("html", {"lang": "en"}) in elements.found
    assert "prefers-color-scheme: dark" in page
    for part in (
        "sine",
        "gradients are stored to order 1, and then: the end.",
        "TensorFlow 2.15 to 2.22",
        "x: float32[?,3]",
        "stablehlo.sine",
        "Where the bytes are",
        "func.func public @main",
    ):
        assert part in elements.text, part
    assert sum(tag == "figure" for tag, _ in elements.found) >= 4


@pytest.mark.usefixtures("prints_here")
def test_names_in_the_file_are_text_on_the_page(ok: Ok, tmp_path: Path) -> None:
    functions = {
        "main": [call(), differentiable(HOSTILE, HOSTILE)],
        HOSTILE: [call(), preventing(HOSTILE)],
    }
    hostile = Model(
        functions,
        gradients={HOSTILE: HOSTILE},
        inputs={HOSTILE: (None, 3)},
        outputs={HOSTILE: (None, 3)},
        variables={HOSTILE: (2, 3)},
        methods={f"{HOSTILE} f": "main"},
        assets=[HOSTILE.replace("/", "")],
        name=HOSTILE,
    )
    hostile.write(tmp_path / "m")
    ok("inspect", "m", "--html", "page.html")
    page = Path("page.html").read_text()
    elements = assert_stands_alone(page)
    assert '<script>alert("x")</script>' in elements.text
    assert "\x1b" not in page
    assert "\x1b" not in ok("inspect", "m")


@pytest.mark.usefixtures("prints_here")
def test_a_page_about_a_file(ok: Ok) -> None:
    words = ("--args", "@tests.cli.models:params", "f32[b,3]", "-o", "predict.jaxfn")
    ok("export", "tests.cli.models:predict", *words)
    text = ok("inspect", "predict.jaxfn", "--html", "page.html")
    assert text == "page.html: a page about predict.jaxfn\n"
    elements = assert_stands_alone(Path("page.html").read_text())
    for part in ("params['w']", "float32[b,3]", "TensorFlow 2.15 to 2.22", "func.func public"):
        assert part in elements.text, part


def test_modules_that_jax_cannot_print(ok: Ok, monkeypatch: pytest.MonkeyPatch, sine: Path) -> None:
    monkeypatch.setattr(_inspect, "_PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(_inspect, "_SECONDS", 0.2)
    ok("inspect", "sine", "--html", "page.html")
    assert "JAX did not print the modules within 0.2 seconds." in Path("page.html").read_text()
    monkeypatch.setattr(_inspect, "_SECONDS", 60)  # a busy machine starts Python slowly
    monkeypatch.setattr(_inspect, "_PROGRAM", "import os; os.abort()")
    ok("inspect", "sine", "--html", "page.html")
    assert "JAX failed while it printed the modules" in Path("page.html").read_text()


def test_charts_are_sorted_and_show_their_values() -> None:
    sizes = [("a", 1), ("b", 5), ("<c>", 3)]
    assert take_largest([*sizes, ("none", 0)], 2) == [("b", 5), ("2 others", 4)]
    chart = draw_bars('Sizes & "more"', take_largest(sizes, 5), str)
    assert Elements(chart).text.split() == ["Sizes", "&", '"more"', "b5", "<c>3", "a1"]
    assert re.findall(r'<rect width="([^"]*)"', chart) == ["100.0%", "60.0%", "20.0%"]
    assert '<rect width="0.3%"' in draw_bars("Sizes", [("a", 10**6), ("b", 1)])
    assert draw_bars("Nothing", []) == ""


def test_bars_that_are_in_order_stay_so() -> None:
    sizes = [(f"module {i}", size) for i, size in enumerate((2, 9, 1, 5))]
    shown = take_largest(sizes, 3, in_order=True)
    assert [label for label, _ in shown] == ["module 1", "module 3", "2 others"]
    assert take_largest(sizes, 9, in_order=True) == sizes


def test_pages_list_variables_and_modules_in_order() -> None:
    sized = [{"path": f"block_{i}/kernel", "bytes": 8} for i in (10, 1, 2)]
    shown = [label for label, _ in _inspect._list_variable_bars(sized)]
    assert shown == ["block_1/kernel", "block_2/kernel", "block_10/kernel"]
    modules = [{"number": i, "bytes": size, "order": 0} for i, size in ((2, 5), (10, 9))]
    shown = [label for label, _ in _inspect._list_module_bars(modules)]
    assert shown == ["module 2", "module 10"]


def test_rows_of_wide_tables_are_blocks_with_titles_on_narrow_screens() -> None:
    heads = ["name", "<type>", "bytes"]
    tables = [PageTable("t", heads[:n], [["x"] * n], number_column=2) for n in (2, 3)]
    tables.append(PageTable("t", [*heads, "more"], [["x"] * 4]))
    elements = assert_stands_alone(render(Page("page", "", tables=tables)))
    kinds = [attributes.get("class") for tag, attributes in elements.found if tag == "table"]
    assert kinds == [None, None, "wide"]
    titles = [a["data-title"] for _, a in elements.found if "data-title" in a]
    assert titles == [*heads, "more"]
    assert 'content: attr(data-title) ": "' in elements.style


@pytest.mark.usefixtures("prints_here")
def test_a_page_has_requests_to_copy(ok: Ok, sine: Path) -> None:
    ok("inspect", "sine", "--html", "page.html")
    text = assert_stands_alone(Path("page.html").read_text()).text
    assert "A request to copy" in text
    for kind in ("rest", "grpc"):
        assert ok("inspect", "sine", "--request", kind).strip() in text
    sidecar(sine, "(b", "gone.jaxfn")  # without its sidecar, the bridge knows no request
    ok("inspect", "sine", "--html", "page.html")
    assert "A request to copy" not in Path("page.html").read_text()


def test_a_request_that_rest_cannot_send_is_not_shown_as_a_command() -> None:
    requests = [
        PageRequest("f", "TensorFlow Serving takes <no> request.", False, "import grpc"),
        PageRequest("g", "curl '<'", True, "import grpc"),
    ]
    page = render(Page("page", "", requests=requests))
    assert "<p>TensorFlow Serving takes &lt;no&gt; request.</p>" in page
    assert '<pre class="copied">curl &#x27;&lt;&#x27;</pre>' in page
    assert "<h3>f</h3>" in page
    assert "<h3>" not in render(Page("page", "", requests=requests[:1]))


def test_a_page_with_nothing_to_say() -> None:
    tables = [PageTable("none", ["a"], [])]
    page = Page("empty", "of all", modules=[Fold("a fold")], tables=tables)
    elements = assert_stands_alone(render(page))
    assert "No problems were found." in elements.text
    assert "none" not in elements.text


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["gone"], 2, "gone: No such file or directory"),
        (["."], 1, ". is not a SavedModel: it has no saved_model.pb. There is one in sine."),
        (["sine", "--html", "sine"], 2, "--html: sine is a folder; name the file to write"),
        (["sine", "--html", "no/page"], 2, "--html: there is no folder no"),
        (
            ["sine", "--html", "page", "--json"],
            2,
            "--json prints, and --html writes a page. Remove one of them",
        ),
    ],
)
def test_errors(run: Run, sine: Path, words: list[str], code: int, error: str) -> None:
    ended = run("inspect", *words)
    assert (ended.code, ended.error) == (code, error)


def test_a_damaged_model(run: Run, sine: Path) -> None:
    (sine / "saved_model.pb").write_bytes(model().proto()[:-5])
    ended = run("inspect", "sine")
    assert ended.code == 1
    assert ended.error.startswith(
        "The file sine/saved_model.pb cannot be read: in the SavedModel, at byte 2, a field of"
    )
