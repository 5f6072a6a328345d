# The package with a CPU build of torch; its command is tape-exp:
#   docker build -t tape_exp .
#   docker run --rm -v "$PWD/work:/work" tape_exp train model=tape task=arithmetic
# Runs and records are written to /work. A folder that is mounted there must be writable for user 1000.
FROM python:3.11-slim

# Triton and torch.compile need a C compiler when they are first used.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY tape_exp ./tape_exp
COPY conf ./conf
COPY launch ./launch
COPY results/paper.yaml ./results/paper.yaml
RUN pip install --no-cache-dir --constraint constraints.txt \
    --extra-index-url https://download.pytorch.org/whl/cpu ".[eval,tune]" \
    && useradd --create-home --uid 1000 runner \
    && mkdir /work \
    && chown runner /work

USER 1000
WORKDIR /work
ENTRYPOINT ["tape-exp"]
CMD ["--help"]
