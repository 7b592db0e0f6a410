"""What admission costs a request: `python tests/fleetctl/gateway/bench_admission.py` prints CPU microseconds.

The whole way in and out without a wait: key, model, limits, charge, seat, settlement; 500 tenants in the file.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from pathlib import Path

from fleetctl.gateway.admission.admission import Admission, Admitted
from fleetctl.gateway.admission.demand import Demand, Usage
from fleetctl.gateway.admission.tenant_account import TenantAccount
from fleetctl.kit.api_key import digest_of
from fleetctl.settings.admission import AdmissionSettings

ROUNDS, REQUESTS = 200, 200


async def cost_s(admission: Admission, authorization: bytes | None) -> float:
    """CPU seconds a request: the best round, because others share the machine."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(REQUESTS):
            account = admission.authenticate(authorization)
            assert isinstance(account, TenantAccount)
            admitted = await admission.admit(account, Demand("r", "llama-3", 100, 50, 1000))
            assert isinstance(admitted, Admitted)
            admitted.note_seated()
            admitted.release(Usage(100, 50))
        best = min(best, (time.process_time() - began) / REQUESTS)
    return best


async def main() -> None:
    """Print the cost without tenants, and with a key and every limit."""
    limits = "{requests_per_min: 1000000000, input_tokens_per_min: 1000000000000, concurrency: 100}"
    text = f"tenants:\n  shop:\n    models: [llama-*]\n    limits: {limits}\n    keys:\n      - sha256: "
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tenants.yaml"
        path.write_text(text + digest_of(b"key").hex() + "\n" + "".join(f"  t{number}:\n" for number in range(500)))
        keyed = Admission(AdmissionSettings(), tenants_file=path)
    gc.disable()
    print(f"anonymous: {await cost_s(Admission(AdmissionSettings()), None) * 1e6:.1f} us")
    print(f"key, models, limits: {await cost_s(keyed, b'Bearer key') * 1e6:.1f} us")


if __name__ == "__main__":
    asyncio.run(main())
