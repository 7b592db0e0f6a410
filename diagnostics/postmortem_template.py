"""The page of a post-mortem, for jinja2. Every value passes a filter of `postmortem_filters`, which escapes it."""

TEMPLATE = """\
# Post-mortem: {{ incident.title | text }}

Incident {{ incident.id | code }}, {{ level.name }} ({{ incident.severity | text }}\
{% if incident.handling.severity_by %}, set by {{ incident.handling.severity_by | text }}{% endif %}), \
{{ incident.status | text }}. Times are UTC. Written {{ written_at | utc }}.

## Summary

{% if diagnosis and diagnosis.cause %}
{{ diagnosis.title | text }}\
{% if is_of_then and walked_at %} (as it was at {{ walked_at | clock }}){% endif %}. \
Cause: **{{ diagnosis.cause | text }}** ({{ diagnosis.confidence | text }}). \
{% if diagnosis.also %}Beside it: **{{ diagnosis.also | text }}**. {% endif %}
{% if incident.handling.correction %}

That is the word of {{ incident.handling.correction.by | text }}; the verdict had been \
{{ (incident.handling.correction.was or "no cause") | text }}.
{% endif %}
{% elif instead %}
{{ diagnosis.title | text }}.
{% elif diagnosis %}
No cause was named: {{ diagnosis.title | text }}.
{% else %}
No cause was named: the incident was not diagnosed.
{% endif %}
Scope: {{ incident.scope | pairs if incident.scope else "the whole fleet" }}. \
{% if incident.widened_at %}It widened {{ incident.widened_at | utc }}: {{ incident.widened_why | text }}. {% endif %}
{% if incident.handling.assignee %}Handled by {{ incident.handling.assignee | text }}\
{% if incident.handling.acknowledged_at %}, acknowledged {{ incident.handling.acknowledged_at | utc }} by \
{{ incident.handling.acknowledged_by | text }}{% else %}, never acknowledged{% endif %}. {% endif %}
{% if incident.part_of %}It is part of {{ incident.part_of | code }}, which explains it. {% endif %}
It began {{ began_at | utc }}\
{% if looked_at_from is not none %} or before (the controller started {{ looked_at_from | clock }}, and found it so)\
{% elif diagnosis and diagnosis.onset is not none and began_at - diagnosis.onset >= 15 %} \
(by its alerts; their series changed {{ (began_at - diagnosis.onset) | span }} before){% endif %}\
, was noticed {{ incident.opened_at | utc }}, \
{% if came_back %}came back {{ came_back[-1] | utc }}\
{% if came_back | length > 1 %} (for the {{ came_back | length }}. time){% endif %}, {% endif %}\
{% if incident.resolved_at %}and was over {{ incident.resolved_at | utc }}.{% else %}and is not over.{% endif %}


## Impact

| what | value |
|---|---|
| requests served meanwhile | {{ impact.requests | known }} |
| finished | {{ impact.finished | known }} |
| moved to another node | {{ impact.moved | known }} |
| lost | {{ impact.lost | known }}\
{% if impact.no_gateway_s and impact.found_no_gateway != 0 and impact.lost is not none %}\
, and those that found no gateway{% endif %} |
{% if impact.lost_by_reason %}
| lost, by reason | {{ impact.lost_by_reason | pairs }} |
{% endif %}
{% if impact.no_gateway_s %}
| found no gateway, in no number here | {{ impact.no_gateway_words | text }} |
{% endif %}
{% if impact.silent_words %}
| gateways | {{ impact.silent_words | text }} |
{% endif %}
{% if impact.left is not none %}
| left before the end of their answer | {{ impact.left }} |
{% endif %}
{% if impact.refused is not none %}
| turned away before they began | {{ impact.refused }} |
{% endif %}
{% if impact.maybe_wrong is not none %}
| answers that may be wrong | {{ impact.maybe_wrong | pairs if impact.maybe_wrong else "not recorded" }} |
{% endif %}
{% if impact.duplicated is not none %}
| answered twice | {{ impact.duplicated }} |
{% endif %}
| p99 time to first token before / worst / after | {{ impact.p99_ttft_before_s | span }} / \
{{ impact.p99_ttft_worst_s | wait }} / {{ impact.p99_ttft_after_s | wait }} |
{% if impact.p99_at_gateway_worst_s is not none %}
| worst p99 by the gateway's clock, with what waited there | {{ impact.p99_at_gateway_worst_s | wait }} |
{% endif %}

{% if impact.slo_minutes is not none %}
Time with a p99 time to first token above its objective of {{ impact.objective_ttft_s | span }}: \
{{ (60 * impact.slo_minutes) | span if impact.slo_minutes else "none" }}.
{% endif %}

{% if impact.is_of_fleet %}
Requests are counted of the whole fleet: no gateway says which of them this hit. Times to first token are those of its \
place, and of a node's pool.
{% endif %}

{% if impact.fates %}
| node | how requests ended | number |
|---|---|---|
{% for fate in impact.fates %}
| {{ (fate.node or "none") | text }} | {{ fate.outcome | text }} | {{ fate.count }} |
{% endfor %}
{% endif %}

## How long it took

{{ clock_words | text }}

| from | to | time |
|---|---|---|
| first bad sample | incident opened | {{ durations.to_detect_s | span }} |
| {{ clock_from }} | cause named \
| {{ durations.to_diagnose_s | span if diagnosis and diagnosis.cause else (instead or "none was named") }} |
| remedy proposed | decided | {{ decided }} |
| {{ clock_from }} | mitigated{{ by_rollback | text if by_rollback else " by a run" }} | {{ mitigated }} |
| {{ clock_from }} | resolved | {{ resolved }} |

## Alerts

| alert | severity | where | fired | cleared | worst value |
|---|---|---|---|---|---|
{% for alert in incident.alerts %}
| {{ alert.name | text }} | {{ alert.severity | text }} | {{ alert.labels | where | text }} \
| {{ alert.fired_at | utc }} | {{ alert.resolved_at | utc if alert.resolved_at else (alert.state | text) }} \
| {{ alert | worst_value }} |
{% endfor %}

## Diagnosis

{% if diagnosis and (diagnosis.tree or diagnosis.evidence) %}
{% if diagnosis.tree %}Tree {{ diagnosis.tree | code }}{% else %}\
What was seen where no tree explains its alerts{% endif %}, evidence of {{ walked_at | utc }}\
{% if incident.handling.correction %}, by which the verdict that was wrong was named{% endif %}.
{% if diagnosis.onset is not none %}

Its symptoms' series changed at {{ diagnosis.onset | utc }}\
{% if diagnosis.onset_early is not none and diagnosis.onset_late is not none \
and (diagnosis.onset_early | clock) != (diagnosis.onset_late | clock) %} \
(between {{ diagnosis.onset_early | clock }} and {{ diagnosis.onset_late | clock }}){% endif %}.
{% endif %}
{% if diagnosis.probability is not none %}

Probability of {{ (diagnosis.cause or "a known cause") | text }} by all that was read: \
{{ "%.0f" | format(100 * diagnosis.probability) }} %.
{% endif %}

| question | answer | measured | limit | age |
|---|---|---|---|---|
{% set told, silent = diagnosis.evidence | parted %}
{% for found in told %}
| {{ found.title | text }} | {{ found.answer }} | {{ found | measured }} | {{ found.threshold | text }} \
| {{ found.age_s | span }} |
{% endfor %}
{% if silent %}

Asked, and nothing was read:
{% for why, titles in silent.items() %}
- {{ why | text }} ({{ titles | counted }}): {{ titles | join(" ") | text }}
{% endfor %}
{% endif %}

{% if diagnosis.runner_up %}
Next best: {{ diagnosis.runner_up | text }}{% if diagnosis.runner_up_probability is not none %} \
({{ "%.0f" | format(100 * diagnosis.runner_up_probability) }} %){% endif %}. {{ diagnosis.tells_apart | text }}
{% endif %}

Ruled out: {{ diagnosis.ruled_out | join(", ") | text if diagnosis.ruled_out else "nothing" }}.
{% for cause, why in diagnosis.why_not.items() %}
- not {{ cause | text }}: {{ why | text }}
{% endfor %}
{% set after = diagnosis.changes | select("came_after") | list %}
{% set before = diagnosis.changes | reject("came_after") | list %}
{% if before %}

Changed just before:
{% for change in before %}
- {{ change | text }}
{% endfor %}
{% endif %}
{% if after %}

Changed right after it began, so not what began it, unless it was told late:
{% for change in after %}
- {{ change | text }}
{% endfor %}
{% endif %}
{% else %}
None.
{% endif %}

{% if verdicts | length > 1 %}
### Verdicts over time

| from | to | cause | confidence | why it was replaced |
|---|---|---|---|---|
{% for one in verdicts %}
| {{ one.at | clock }} | {{ one.until | clock if one.until else "the end" }} \
| {{ (one.cause or "none named") | text }} \
| {{ one.confidence | text }} | {{ one.why_ended | text }} |
{% endfor %}
{% endif %}

## What was done

{% for run in runs %}
### {{ (run.title or run.runbook) | text }}: {{ run.status | text }}\
{{ run | whose | text }}

Run {{ run.id | code }} of {{ "a command" if run.runbook == "action" else "runbook " ~ (run.runbook | code) }}, \
{{ "asked for" if run.is_apart else "proposed" }} {{ run.created_at | utc }} by \
{{ (run.requested_by or "nobody named") | text }}\
{{ " and not for this incident" if run.is_apart else "" }}, {{ run | by }}. Inputs: {{ run.inputs | pairs }}.
{% if effects.get(run.id) %}

Measured: {{ effects.get(run.id) | text }}.
{% endif %}

| step | command | status | attempts | began | took | receipt |
|---|---|---|---|---|---|---|
{% for step in run.steps %}
| {{ step.index + 1 }}{{ " (undo)" if step.phase == "undo" }} {{ step.title | text }} | {{ step.command | code }} \
| {{ step.status | text }} | {{ step.attempts }} | {{ step.started_at | clock if step.started_at else "—" }} \
| {{ (step.ended_at - step.started_at) | span if step.started_at and step.ended_at else "—" }} \
| {{ step.receipt | pairs }}{{ " " ~ (step.error | text) if step.error }} |
{% endfor %}

{% if run.verification %}
Verification: {{ run.verification | text }}
{% endif %}
{% if run.error %}

{{ "Why" if run.status in ("cancelled", "denied", "expired") else "Error" }}: {{ run.error | text }}
{% endif %}

{% else %}
{% if taken_back %}
No runbook was run. The rollout that it began with was taken back at {{ taken_back.at | clock }}: \
{{ taken_back.text | text }}.
{% else %}
Nothing was run by fleetctl.
{% endif %}
{% endfor %}

{% if earlier %}
Run there before it began:

{% for run in earlier %}
- {{ run.created_at | clock }} {{ (run.title or run.runbook) | text }}: {{ run.status | text }}\
{{ run | whose | text }}
{% endfor %}
{% endif %}

{% if around %}
## What else happened there

| time | event | what |
|---|---|---|
{% for event in around %}
| {{ event.at | clock }} | {{ event.kind | text }} | {{ event.text | text }} |
{% endfor %}
{% if around_left_out %}

{{ around_left_out }} earlier ones are in the black box.
{% endif %}
{% endif %}

## Timeline

| time | event | what |
|---|---|---|
{% for event in timeline %}
| {{ event.at | clock }} | {{ event.kind | text }} | {{ event.text | text }} |
{% endfor %}
{% if timeline_left_out %}

{{ timeline_left_out }} more entries are in the black box.
{% endif %}

## What is not known

{% for gap in unknown %}
- {{ gap | text }}
{% else %}
Nothing that the record could tell is missing.
{% endfor %}

## Follow-ups

{% for item in follow_ups %}
- [ ] {{ item | text }}
{% else %}
None follow from the record.
{% endfor %}

{% if diagnosis and diagnosis.evidence | selectattr("query") | list %}
## Queries

{% for found in diagnosis.evidence if found.query %}
- {{ found.question | text }}: {{ found.query | code }}
{% endfor %}
{% endif %}
"""
