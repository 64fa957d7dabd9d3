from tests.pipelines.random_translators import (  # noqa: F401
    target_vocabulary,
    translations,
    translator,
    vocabulary,
)
