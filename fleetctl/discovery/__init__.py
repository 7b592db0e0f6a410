from fleetctl import bundled as bundled  # first: what follows imports alerts
