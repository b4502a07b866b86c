package main

// config is what a part is started with.
type config struct {
	// Of the server.
	Dir, Probe, Library, Profile string
	People                       int
	// Of the readers.
	Address string
	CA      []byte
	UUIDs   []string
	Cookies []string // one page each
}

// ready is the line by which a part says that it works.
type ready struct {
	Address string
	CA      []byte
	UUIDs   []string
	Cookies []string
}
