"""The OpenAPI document has an example for each operation, and the API answers each as the document says."""

from __future__ import annotations

from typing import Any

from emq_web import documenting
from support import api_examples, api_operations


async def test_the_api_answers_each_example_as_the_document_says() -> None:
    async with api_examples.stage() as (api, story):
        for example in api_examples.examples():
            await api_examples.run(api, story, example)


def test_each_operation_has_an_example_of_its_request_and_its_answer() -> None:
    for operation in documenting.operations(api_operations.documented()):
        shown = [each for each in api_examples.examples() if each["operation"] == operation.name]
        assert shown, operation.name
        for example in shown:
            assert ("body" in example) <= ("requestBody" in operation.content), operation.name
            answer = operation.content["responses"][str(example["status"])]
            assert _shows(answer, example.get("answer")) or "answer" not in example
            assert ("answer" in example) == (example["status"] != 204), operation.name
            for parameter in operation.content.get("parameters", ()):
                if parameter["in"] == "path":
                    assert parameter["examples"]["example"]["value"] == shown[0]["path"][parameter["name"]]
    known = {operation.name for operation in documenting.operations(api_operations.documented())}
    assert {each["operation"] for each in api_examples.examples()} == known


def _shows(answer: Any, value: Any) -> bool:
    kinds = answer.get("content", {}).values()
    return any(each["value"] == value for kind in kinds for each in kind.get("examples", {}).values())
