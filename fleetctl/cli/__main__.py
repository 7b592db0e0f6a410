from fleetctl.cli.app import main

main()
