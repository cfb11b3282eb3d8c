#!/bin/sh
# An app's own agent, with curl alone: it reports the rho and makes the bid that the service's agent would. Run: sh examples/agent.sh APP
#
# Questions are server-sent events of GET /v1/apps/APP/agent: a line `event: probe` or `event: offer`, then `data: ` with its message as JSON.
# Answers are POST /v1/answers with the question's `round`; the reply says in a sentence what was refused.
set -eu
app=$1
home=${THEMIS_DATA_DIR:-$HOME/.themis}
url=$(sed -n 's/.*"http": "\([^"]*\)".*/\1/p' "$home/endpoint.json")
token="Authorization: Bearer $(cat "$home/token")"

answer() {
  printf '{"answers": [{"app": "%s", "round": %s, %s}]}' "$app" "$round" "$1" |
    curl -sS -H "$token" -H "Content-Type: application/json" --data-binary @- "$url/v1/answers" >&2
}

kind=
curl -sSNf -H "$token" "$url/v1/apps/$app/agent" | while IFS= read -r line; do
  case $line in
    "event: "*) kind=${line#event: } ;;
    "data: "*)
      data=${line#data: }
      round=$(printf '%s' "$data" | sed 's/.*"round":"\([0-9]*\)".*/\1/')
      case $kind in
        probe)
          rho=$(printf '%s' "$data" | sed 's/.*"rho":\([^,]*\),"lease_s".*/\1/')
          answer "\"rho\": $rho"
          ;;
        offer)
          rows=$(printf '%s' "$data" | sed 's/.*"rows":\(\[.*\]\)}}$/\1/')
          answer "\"rows\": $rows"
          ;;
        award | lease | goodbye) echo "$data" ;;
      esac
      ;;
  esac
done
