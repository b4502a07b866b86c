package main

import "net/netip"

// config is what a part is started with.
type config struct {
	// Of the head.
	Dir, Profile string
	Machines     int
	// Of the machines.
	Door    netip.AddrPort
	Lab     []byte // its authority, PEM
	Members []member
}

// ready is the line by which a part says that it works.
type ready struct {
	Door    netip.AddrPort
	Lab     []byte
	Members []member
}

// member is a machine that belongs to the pool, with key and certificate as PEM.
type member struct {
	Name             string
	Key, Certificate []byte
}
