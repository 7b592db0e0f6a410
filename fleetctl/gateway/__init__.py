from fleetctl.gateway.compiled import choose_build

choose_build(__name__)
