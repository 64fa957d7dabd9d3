# The server with a model of the package:
#   docker build -t keras-tfm . && docker run -p 8501:8501 keras-tfm
# With a model of your own, in the folder ./animals:
#   docker run -p 8501:8501 -v ./animals:/model:ro keras-tfm /model
FROM python:3.12-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
ENV KERAS_BACKEND=torch PYTHONUNBUFFERED=1
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        "$(echo /wheels/*.whl)[torch,serve]" \
    && rm -r /wheels \
    && useradd --create-home server
USER server
EXPOSE 8501
HEALTHCHECK --start-period=60s CMD python -c \
    "import urllib.request as r; r.urlopen('http://127.0.0.1:8501/health', timeout=5)"
ENTRYPOINT ["keras-tfm", "serve", "--host", "0.0.0.0", "--port", "8501"]
CMD ["en-de"]
