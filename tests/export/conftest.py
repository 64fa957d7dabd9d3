from tests.pipelines.drawn import (  # noqa: F401
    target_vocabulary,
    translations,
    translator,
    vocabulary,
)
