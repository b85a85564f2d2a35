# One image for each service: docker build --target gateway -t pandal/gateway .
# Built of the lock; run as nobody in particular, on a read-only root: what is written goes to volumes.
FROM python:3.12-slim AS build
WORKDIR /src
RUN python -m venv /opt/pandal
ENV PATH=/opt/pandal/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# What the lock names comes before the code: a change of the code fetches nothing again.
COPY pyproject.toml requirements.lock README.md LICENSE ./

FROM build AS build-gateway
RUN pip install -c requirements.lock '.[gateway,exact,admin]'
COPY . .
RUN pip install --no-deps --force-reinstall . && python -m pandal.chart.packages /opt/pandal
FROM build AS build-replica
# For GPUs: --target replica-gpu --build-arg TORCH=https://download.pytorch.org/whl/cu130
ARG TORCH=https://download.pytorch.org/whl/cpu
RUN pip install -c requirements.lock --extra-index-url $TORCH '.[replica]'
COPY . .
RUN pip install --no-deps --force-reinstall . && python -m pandal.chart.packages /opt/pandal
FROM build AS build-autoscaler
RUN pip install -c requirements.lock '.[autoscaler]'
COPY . .
RUN pip install --no-deps --force-reinstall . && python -m pandal.chart.packages /opt/pandal
FROM build AS build-billing
RUN pip install -c requirements.lock '.[billing,postgres]'
COPY . .
RUN pip install --no-deps --force-reinstall . && python -m pandal.chart.packages /opt/pandal

FROM python:3.12-slim AS run
ENV PATH=/opt/pandal/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /tmp
USER 10001:10001
STOPSIGNAL SIGTERM

FROM run AS gateway
COPY --from=build-gateway /opt/pandal /opt/pandal
EXPOSE 8080
ENTRYPOINT ["python", "-m", "gateway"]

FROM run AS replica
COPY --from=build-replica /opt/pandal /opt/pandal
EXPOSE 8000
ENTRYPOINT ["python", "-m", "replica"]

# Triton compiles its driver's module when it starts.
FROM replica AS replica-gpu
USER 0:0
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
USER 10001:10001

FROM run AS autoscaler
COPY --from=build-autoscaler /opt/pandal /opt/pandal
EXPOSE 9100
ENTRYPOINT ["python", "-m", "autoscaler"]

FROM run AS billing
COPY --from=build-billing /opt/pandal /opt/pandal
ENTRYPOINT ["python", "-m", "billing"]
