"""A notebook as a page: its text, its code and the outputs that are stored in it."""

import base64
import json
from pathlib import Path
from typing import Any


def pages(path: Path, uri: str) -> dict[str, str | bytes]:
    """The page, and the pictures beside it."""
    made: dict[str, str | bytes] = {}
    text = []
    for cell in json.loads(path.read_text())["cells"]:
        written = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            text.append(written)
            continue
        text.append(f"```python\n{written}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                text.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif picture := picture_of(output):
                name = f"{path.stem}-{len(made) + 1}.png"
                made[uri.replace(Path(uri).name, name)] = picture
                text.append(f"![What the cell above draws]({name})")
    return {uri: "\n\n".join(text) + "\n", **made}


def picture_of(output: dict[str, Any]) -> bytes | None:
    """The picture of an output, if it is one."""
    encoded = output.get("data", {}).get("image/png")
    return None if encoded is None else base64.b64decode("".join(encoded))
