package config

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
)

// Files says where people bring files in and out over SFTP.
type Files struct {
	// Listen is the address of the SFTP server, such as ":2022" for all
	// addresses of this machine; off for none.
	Listen FilesAddress `json:"listen,omitempty"`
}

// FilesAddress is an address to listen on, or off.
type FilesAddress string

const filesOff FilesAddress = "off"

// UnmarshalJSON takes the word off, which is false in YAML, and a port alone.
func (a *FilesAddress) UnmarshalJSON(data []byte) error {
	var text string
	var port int
	switch {
	case string(data) == "false":
		text = string(filesOff)
	case json.Unmarshal(data, &port) == nil:
		text = ":" + strconv.Itoa(port)
	case json.Unmarshal(data, &text) != nil:
		text = string(data)
	}
	*a = FilesAddress(text)
	return nil
}

// On reports whether files are taken at all.
func (a FilesAddress) On() bool { return a != filesOff }

// port is that of the address, 0 where there is none.
func (a FilesAddress) Port() (int, error) {
	if !a.On() {
		return 0, nil
	}
	_, text, err := net.SplitHostPort(string(a))
	port, numErr := strconv.Atoi(text)
	if err != nil || numErr != nil || port < 1 || port > 65535 {
		return 0, fmt.Errorf("files.listen is %q; write it as \":2022\", with an address in front for only that one, or off", string(a))
	}
	return port, nil
}

// check finds what cannot be, and ports that are used twice.
func (c Files) Check(others ...int) error {
	port, err := c.Listen.Port()
	if err != nil {
		return err
	}
	for _, other := range others {
		if port != 0 && port == other {
			return fmt.Errorf("files.listen and another door of gpulab both have port %d; give each its own", port)
		}
	}
	return nil
}

const (
	notebookPortsKey = "notebookPorts"
	// maxNotebookPorts bounds the listening sockets: each person who has had a
	// notebook has one.
	maxNotebookPorts = 5000
)

// defaultNotebookPorts are for a configuration that names none: the first that
// leaves its other ports alone.
var defaultNotebookPorts = []string{"21000-21999", "23000-23999", "25000-25999", "27000-27999"}

// NotebookPorts are ports of the head, as two numbers.
type NotebookPorts string

// UnmarshalJSON takes a single number, too.
func (n *NotebookPorts) UnmarshalJSON(data []byte) error {
	*n = NotebookPorts(strings.Trim(string(data), `"`))
	return nil
}

// notebookPorts are the ports of the head from which each person gets one.
func (c *Config) NotebookPortList() ([]int, error) {
	taken := c.fixedPorts()
	services, err := c.ServicePortList()
	if err != nil {
		return nil, err
	}
	for _, p := range services {
		taken[p] = "a service (servicePorts)"
	}
	ports, err := portRange(notebookPortsKey, string(c.NotebookPorts), maxNotebookPorts, taken)
	if err != nil {
		return nil, fmt.Errorf("%w; notebooks need ports of their own", err)
	}
	return ports, nil
}

// DefaultNotebookPorts is the range of a configuration that names none.
func (c Config) DefaultNotebookPorts() NotebookPorts {
	for _, text := range defaultNotebookPorts {
		tried := c
		tried.NotebookPorts = NotebookPorts(text)
		if _, err := tried.NotebookPortList(); err == nil {
			return tried.NotebookPorts
		}
	}
	return NotebookPorts(defaultNotebookPorts[0]) // check says what is in its way
}

// maxServicePorts is how many ports services may have: each that is in use is a
// listening socket.
const maxServicePorts = 2000

// servicePorts are the ports of the head that services can have: "8500-8699",
// or off for none.
func (c *Config) ServicePortList() ([]int, error) {
	if strings.TrimSpace(string(c.ServicePorts)) == servicePortsOff {
		return nil, nil
	}
	return portRange("servicePorts", string(c.ServicePorts), maxServicePorts, c.fixedPorts())
}

// fixedPorts are the ports of the head that have one use, with the key that sets each.
func (c *Config) fixedPorts() map[int]string {
	ports := map[int]string{c.HTTPSPort: "httpsPort", c.HubPort: "hubPort", c.NodesPort: "nodesPort", 6443: "Kubernetes", 10250: "Kubernetes"}
	if c.HTTPPort != nil { // nil before the defaults are set
		ports[*c.HTTPPort] = "httpPort"
	}
	return ports
}

// otherPorts returns a function that reports whether the head serves something other than its pages at a port. No link to
// the pages leads to such a port.
func (c *Config) OtherPorts() func(port int) bool {
	ports := c.fixedPorts()
	// Load has told of errors in them.
	services, _ := c.ServicePortList()
	notebooks, _ := c.NotebookPortList()
	files, _ := c.Files.Listen.Port()
	for _, p := range slices.Concat(services, notebooks, []int{files}) {
		ports[p] = "another"
	}
	delete(ports, c.HTTPSPort)
	delete(ports, c.HubPort) // many people forward the pages as 8443, and HubPort shows no content of notebooks or services
	return func(port int) bool { return ports[port] != "" }
}

// portRange reads two ports such as 8500-8699. Errors name the key.
func portRange(key, text string, most int, others map[int]string) ([]int, error) {
	from, to, isRange := strings.Cut(strings.TrimSpace(text), "-")
	if !isRange {
		to = from
	}
	low, err := strconv.Atoi(strings.TrimSpace(from))
	high, err2 := strconv.Atoi(strings.TrimSpace(to))
	if err != nil || err2 != nil || low < 1024 || high > 32767 || low > high {
		example := "8500-8699, or off"
		if key == notebookPortsKey {
			example = defaultNotebookPorts[0]
		}
		return nil, fmt.Errorf("%s is %q; it may be two ports from 1024 to 32767 such as %s", key, text, example)
	}
	if high-low >= most {
		return nil, fmt.Errorf("%s is %q, but %d ports are the most", key, text, most)
	}
	var ports []int
	for p := low; p <= high; p++ {
		if other := others[p]; other != "" {
			return nil, fmt.Errorf("%s is %q, but port %d in it is that of %s", key, text, p, other)
		}
		ports = append(ports, p)
	}
	return ports, nil
}

const servicePortsOff = "off"

// ServicePorts are ports of the head, as two numbers, or off.
type ServicePorts string

// UnmarshalJSON takes the word off, which is false in YAML, and a single number.
func (s *ServicePorts) UnmarshalJSON(data []byte) error {
	switch text := string(data); text {
	case "false":
		*s = servicePortsOff
	default:
		*s = ServicePorts(strings.Trim(text, `"`))
	}
	return nil
}
