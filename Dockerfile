# One image for the service, the dashboard and the collectors; docker-compose.yml says which command each runs.
FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN pip install --no-cache-dir "hatchling>=1.27" && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM python:3.11-slim
COPY --from=build /wheels /wheels
COPY constraints.txt /wheels/constraints.txt
RUN set -e; wheel="$(ls /wheels/pdtrace-*.whl)"; \
    pip install --no-cache-dir -c /wheels/constraints.txt "${wheel}[all]"; \
    rm -rf /wheels; \
    useradd --system --uid 10001 --create-home pdtrace; \
    install -d -o pdtrace -g pdtrace /data
USER 10001
WORKDIR /home/pdtrace
VOLUME /data
ENV PYTHONUNBUFFERED=1
EXPOSE 4317 4318 4320 8501
ENTRYPOINT ["pdtrace"]
CMD ["serve", "--db", "/data/pdtrace.duckdb", "--host", "0.0.0.0"]
