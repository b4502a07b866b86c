package config

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
)

// The ports that may serve notebooks and services. Linux uses higher ones for outgoing connections.
const leastPort, mostPort = 1024, 32767

// Each port in use is a listening socket.
const maxServicePorts, maxNotebookPorts = 2000, 5000

// notebookRanges are the ranges of which the default is the first one that leaves the other ports free.
var notebookRanges = []string{"21000-21999", "23000-23999", "25000-25999", "27000-27999"}

// kubernetesPorts are the ports of the API server and the kubelet.
var kubernetesPorts = []int{6443, 10250}

// fixedPorts returns the ports of the head that have one use, with the key that sets each.
func (c *Config) fixedPorts() map[int]string {
	ports := map[int]string{c.HTTPSPort: "httpsPort", c.HubPort: "hubPort", c.NodesPort: "nodesPort"}
	for _, port := range kubernetesPorts {
		ports[port] = "Kubernetes"
	}
	if c.HTTPPort != nil {
		ports[*c.HTTPPort] = "httpPort"
	}
	return ports
}

// OtherPorts returns a function that reports whether the head serves something other than its pages at a port. No link
// to the pages leads to such a port.
func (c *Config) OtherPorts() func(port int) bool {
	ports := c.fixedPorts()
	for _, p := range slices.Concat(c.ServicePorts.List(), c.NotebookPorts.List(), []int{c.Files.Listen.Port()}) {
		ports[p] = "another"
	}
	delete(ports, c.HTTPSPort)
	// many people forward the pages as 8443, and HubPort shows no content of notebooks or services
	delete(ports, c.HubPort)
	return func(port int) bool { return ports[port] != "" }
}

func checkHubPort(c *Config) error {
	if c.HTTPSPort == c.HubPort {
		return fmt.Errorf("httpsPort and hubPort are both %d, but pages and notebooks need a port each", c.HubPort)
	}
	return checkPort("hubPort", func(c *Config) int { return c.HubPort })(c)
}

func (c *Config) checkServicePorts() error {
	return c.ServicePorts.check("servicePorts", "8500-8699, or off", maxServicePorts, c.fixedPorts())
}

func (c *Config) checkNotebookPorts() error {
	taken := c.fixedPorts()
	for _, p := range c.ServicePorts.List() {
		taken[p] = "a service (servicePorts)"
	}
	err := c.NotebookPorts.check("notebookPorts", notebookRanges[0], maxNotebookPorts, taken)
	if err == nil && c.NotebookPorts.Value.low == 0 {
		err = fmt.Errorf("notebookPorts is %s", c.NotebookPorts)
	}
	if err != nil {
		return fmt.Errorf("%w; notebooks need ports of their own", err)
	}
	return nil
}

// check reports a wrong range, or one with a port that has another use.
func (p Ports) check(key, example string, most int, others map[int]string) error {
	if p.wrong {
		return fmt.Errorf("%s is %q; it may be two ports from %d to %d such as %s", key, p.text, leastPort, mostPort, example)
	}
	if p.Value.high-p.Value.low >= most {
		return fmt.Errorf("%s is %q, but %d ports are the most", key, p.text, most)
	}
	for _, port := range p.List() {
		if other := others[port]; other != "" {
			return fmt.Errorf("%s is %q, but port %d in it is that of %s", key, p.text, port, other)
		}
	}
	return nil
}

// usualNotebookPorts is the range of a configuration that names none.
func (c *Config) usualNotebookPorts() Ports {
	for _, text := range notebookRanges {
		tried := *c
		if tried.NotebookPorts = newPorts(text); tried.checkNotebookPorts() == nil {
			return tried.NotebookPorts
		}
	}
	return newPorts(notebookRanges[0]) // the check names the port that it shares
}

// Files says where people copy files over SFTP.
type Files struct {
	Listen FilesAddress `json:"listen,omitempty"`
}

// FilesAddress is an address to listen on, such as ":2022", or off.
type FilesAddress string

// UnmarshalJSON accepts a port alone, too.
func (a *FilesAddress) UnmarshalJSON(data []byte) error {
	var port int
	if string(data) != "null" && json.Unmarshal(data, &port) == nil {
		*a = FilesAddress(":" + strconv.Itoa(port))
	} else {
		*a = FilesAddress(text(data))
	}
	return nil
}

// On reports whether there is an SFTP server.
func (a FilesAddress) On() bool { return a != FilesAddress(Off) }

// Port is the port of the address, 0 for off.
func (a FilesAddress) Port() int {
	_, text, err := net.SplitHostPort(string(a))
	port, numErr := strconv.Atoi(text)
	if err != nil || numErr != nil || port < 1 || port > 65535 {
		return 0
	}
	return port
}

func (c *Config) checkFiles() error {
	port := c.Files.Listen.Port()
	if port == 0 && c.Files.Listen.On() {
		return fmt.Errorf("files.listen is %q; write it as \":2022\", with an address in front for only that one, or off",
			c.Files.Listen)
	}
	for _, other := range append([]int{c.HTTPSPort, c.HubPort, *c.HTTPPort}, kubernetesPorts...) {
		if port != 0 && port == other {
			return fmt.Errorf("files.listen and another port of gpulab both have port %d; give each its own", port)
		}
	}
	return nil
}
