package config

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/power"
	"github.com/gpulab/gpulab/internal/signin"
)

// key is one key of the configuration. The table of keys is where a key's default, its check and its documentation are
// written; the file that init writes and docs/configuration.md are made from it.
type key struct {
	path  string              // with the keys above it, as in queue.halfLife
	usual string              // the default, in YAML; empty for none
	doc   string              // what it does; indented lines are an example
	check func(*Config) error // reports a wrong value; the error begins with the path

	// zero says that 0 or an empty text is a value of its own, so that the default applies only where the key is absent.
	zero bool
	// recent says that the previous release does not know the key. It is commented out while it has its default, so
	// that an older program can read the file after a rollback.
	recent bool
}

const (
	minute = time.Minute
	hour   = time.Hour
	day    = 24 * hour

	gibibyte = int64(1) << 30
	tebibyte = int64(1) << 40
)

// keys returns the keys in the order of the file.
func keys() []key {
	return slices.Concat(labKeys(), machineKeys(), peopleKeys(), gpuKeys(), storageKeys(), otherKeys())
}

// labKeys are about names, addresses and ports.
func labKeys() []key {
	return []key{
		{path: "lab", usual: "GPU lab", doc: "The lab's name, as its pages show it.",
			check: func(c *Config) error { return CheckLab(c.Lab) }},
		{path: "address", doc: "This machine's address. Empty: the address with the default route, found at every start."},
		{path: "names", check: (*Config).checkWildcards,
			doc: `Other names by which people reach this machine, for example [gpu.lab.example].
With "*.gpu.lab.example" as well, each person's notebooks have a name below gpu.lab.example
instead of a port. The name server needs a record for it, too.`},
		{path: "tls", check: func(c *Config) error { return c.TLS.check() },
			doc: `A certificate from another authority. It is used for the names it covers; write the one that
people use first among the names above. gpulab notices when the files are renewed.`},
		{path: "tls.certificate"},
		{path: "tls.key"},
		{path: "trustedProxies", check: checkNetworks("trustedProxies", func(c *Config) []Prefix { return c.TrustedProxies }),
			doc: `Reverse proxies in front of this lab, as addresses or networks. Only these may say who the
visitor is (X-Forwarded-For) and which address was requested (X-Forwarded-Host).`},
		{path: "localName", usual: "gpulab", check: func(c *Config) error { return c.LocalName.check() },
			doc: `The lab's name on the local network (mDNS): gpulab stands for gpulab.local. If two labs use
the same name, the second becomes gpulab-2.local. off: no such name.`},
		{path: "httpsPort", usual: "443", check: checkPort("httpsPort", func(c *Config) int { return c.HTTPSPort }),
			doc: "The port of the pages."},
		{path: "hubPort", usual: "8443", check: checkHubPort, doc: "The port of the permanent addresses of notebooks and " +
			"services."},
		{path: "httpPort", usual: "80", zero: true, check: checkPort("httpPort", func(c *Config) int { return *c.HTTPPort }),
			doc: "The port that redirects to HTTPS. 0: none."},
		{path: "servicePorts", usual: "8500-8699", check: (*Config).checkServicePorts,
			doc: `Ports for services, one for each. A separate port is what isolates a service from notebooks
and other services in a browser. Open them in a firewall in front of this machine.
off: the lab has no services.`},
		{path: "notebookPorts", recent: true, check: (*Config).checkNotebookPorts,
			doc: `Ports for notebooks. Each person gets one at their first visit and keeps it. A separate port is
what isolates one person's notebooks from another's in a browser. Open them in a firewall in
front of this machine. A longer range has room for more people. Without this key:
21000-21999, or a range that leaves the lab's other ports free.`},
		{path: "nodesPort", usual: fmt.Sprint(DefaultNodesPort), check: checkPort("nodesPort", func(c *Config) int {
			return c.NodesPort
		}),
			doc: "The port on which other machines join and report. It is open once there is an invitation or a\njoined " +
				"machine."},
		{path: "nodesHidden",
			doc: `While that port is open, the head is announced on the local network (mDNS), so that gpulab join
finds it. true: it is not announced, and joining needs the address in the code.`},
	}
}

// machineKeys are about this machine.
func machineKeys() []key {
	return []key{
		{path: "gpus", usual: GPUsNone, check: func(c *Config) error {
			return oneOf("gpus", c.GPUs, GPUsReal, GPUsSimulated, GPUsNone)
		}, doc: `real, simulated or none. Simulated GPUs compute nothing; they are for trying gpulab on a
machine without a card.`},
		{path: "simulatedGPUs", usual: "2", zero: true, check: func(c *Config) error {
			if c.SimulatedGPUs < 1 || c.SimulatedGPUs > 16 {
				return fmt.Errorf("simulatedGPUs is %d; it may be 1 to 16", c.SimulatedGPUs)
			}
			return nil
		}, doc: "How many GPUs to simulate."},
		{path: "gpuSharing", usual: "1", zero: true, check: func(c *Config) error {
			if c.GPUSharing < 1 || c.GPUSharing > MaxSharing {
				return fmt.Errorf("gpuSharing is %d; it may be 1 (each GPU is one notebook's at a time) to %d", c.GPUSharing,
					MaxSharing)
			}
			return nil
		}, doc: `How many notebooks share each GPU by taking turns. 1: none does. They share its memory, too,
and nothing stops one of them from using all of it.`},
		{path: "stayAwake", usual: string(power.Always), check: func(c *Config) error {
			switch power.Policy(c.StayAwake) {
			case power.Always, power.LidOpen, power.Never:
				return nil
			}
			return fmt.Errorf("stayAwake is %q; it may be notebooks (while some run), lid-open (the same, but not with the "+
				"lid closed) or off", c.StayAwake)
		}, doc: `What keeps this machine from going to sleep, where systemd-logind can put it to sleep:
notebooks (while some run, even with the lid closed), lid-open (while some run and the lid is
open), or off.`},
		{path: "timezone", recent: true, check: func(c *Config) error { return c.TimeZone.check() },
			doc: `The time zone of notebooks, jobs and services, for example Europe/Berlin. Without this key: the
machine's time zone when they start.`},
		{path: "dataDir", usual: DefaultDataDir, check: func(c *Config) error {
			if !filepath.IsAbs(c.DataDir) || filepath.Clean(c.DataDir) == "/" {
				return fmt.Errorf("dataDir is %q, but must be the full path of a folder of its own", c.DataDir)
			}
			return nil
		}, doc: "The folder with all state: databases, homes, Kubernetes."},
		{path: "imagesDir", doc: `The folder with the container images. Empty: the folder "images" next to the program, then
/usr/share/gpulab/images.`},
	}
}

// peopleKeys are about what people start, and how they sign in.
func peopleKeys() []key {
	return []key{
		{path: "profiles", check: func(c *Config) error {
			if err := notebooks.CheckProfiles(c.Profiles); err != nil {
				return fmt.Errorf("profiles: %w", err)
			}
			return nil
		}, doc: `The profiles from which people start notebooks. Empty: the first two below, one without a GPU
and one with a GPU. A list replaces them, so include those you want to keep. cpus and memory
are limits; without them, a notebook may use half of the machine. gpuModel and gpuMemory say
which GPUs fit, as the page of a GPU shows them. Only administrators see a profile that no
machine can serve. image is a container image to use instead of gpulab's own; it must contain
JupyterLab and JupyterHub's jupyterhub-singleuser. Add it with "gpulab images", or the first
launch downloads it from its registry.
  - slug: cpu
    title: CPU notebook
    cpus: 2
    memory: 4Gi
  - slug: gpu
    title: GPU notebook
    cpus: 4
    memory: 8Gi
    gpus: 1
  - slug: big
    title: Large GPU
    description: For models that need much memory.
    cpus: 8
    memory: 32Gi
    gpus: 1
    gpuModel: NVIDIA A100-SXM4-80GB
    gpuMemory: 80Gi
    image: quay.io/jupyter/pytorch-notebook:cuda12-2026-10-05`},
		{path: "signUp", usual: string(Off), check: func(c *Config) error {
			return oneOf("signUp", c.SignUp, Off, SignUpApproval)
		}, doc: `How people without an invitation get an account. off: an admin adds them. approval: everyone
who reaches the sign-in page can request one, and an admin decides.`},
		{path: "signin", check: func(c *Config) error {
			if err := signin.Check(c.SignIn); err != nil {
				return fmt.Errorf("signin: %w", err)
			}
			return nil
		}, doc: `External identity providers: OpenID Connect, OAuth 2, LDAP. docs/signin.md has an example for
each; "gpulab signin check" tests them. Secrets are in separate files. This one is a Keycloak:
  - name: university
    type: keycloak
    title: Example University
    url: https://id.example.org
    realm: staff
    clientID: gpulab
    clientSecretFile: /etc/gpulab/university.secret
    rules:
      - groups: [gpu-admins]
        role: admin
      - groups: [students, staff]
        role: member`},
		{path: "tailnet", doc: `Who signs in over a tailnet, once "gpulab tailnet up" has added the lab to one.`},
		{path: "tailnet.signIn", usual: string(Off), check: func(c *Config) error {
			return c.Tailnet.checkSignIn(c.SignIn)
		}, doc: `off: people sign in as elsewhere. offer: people whom allow names may sign in with their
identity in the tailnet, without a password. require: over the tailnet, everyone else is
rejected, and passwords are not accepted.`},
		{path: "tailnet.accounts", doc: "create (the default) adds an account for a person who has none; existing does not."},
		{path: "tailnet.allow", check: func(c *Config) error {
			return c.Tailnet.checkAllow()
		}, doc: `People, groups, tags of machines without an owner, and people of other tailnets with whom the
machine is shared. Each gets a role, a group of the lab, or both:
  allow:
    - {login: ada@example.org, role: admin}
    - {login: "*@example.org", role: member, labGroup: vision}
    - {group: "group:staff", role: lead}
    - {tag: "tag:kiosk", role: guest}
    - {shared: guest@example.com, role: guest}`},
		{path: "metrics", doc: `Who may read https://LAB/metrics: administrators, Prometheus with the token in
dataDir/metrics-token ("gpulab metrics --scrape-config" prints its job), and some networks
without it.`},
		{path: "metrics.enabled", usual: "true", doc: "false removes /metrics."},
		{path: "metrics.networks", check: checkNetworks("metrics.networks", func(c *Config) []Prefix {
			return c.Metrics.Networks
		}),
			doc: "Networks that may read it without the token, for example [10.1.2.0/24]."},
	}
}

// gpuKeys are about sharing GPUs.
func gpuKeys() []key {
	usual := idle.Default()
	return []key{
		{path: "quotas", doc: `Quotas are set while the lab runs ("gpulab quota", or the page Quotas).`},
		{path: "quotas.termBegins", check: func(c *Config) error {
			if c.Quotas.TermBegins.wrong {
				return fmt.Errorf("quotas.termBegins is %q, which is no day; write it as 2026-10-12", c.Quotas.TermBegins)
			}
			return nil
		}, doc: `The first day of the term, for example 2026-10-12. Hours "this term" count from then.`},
		{path: "quotas.grace", usual: "1h", check: func(c *Config) error {
			return c.Quotas.Grace.within("quotas.grace", 0, 7*day, "1h or 30m")
		}, doc: "How long a person's notebooks with a GPU keep running, with a notice, when their GPU hours are\nused up."},

		{path: "queue", doc: `When GPUs are scarce, people who used fewer GPU hours in the past go first. docs/queue.md
explains the order.`},
		{path: "queue.halfLife", usual: "168h", check: func(c *Config) error {
			return c.Queue.HalfLife.within("queue.halfLife", time.Second, 365*day, "168h for seven days")
		}, doc: "After this time, past use counts half."},
		{path: "queue.sampling", usual: "1m", check: func(c *Config) error {
			return c.Queue.Sampling.within("queue.sampling", time.Second, hour, "1m")
		}, doc: "How often past use is computed."},
		{path: "queue.shares", check: (*Config).checkShares,
			doc: `The number of GPUs for which a group goes first while it holds fewer. Other people use what the
group leaves free. For example {vision: 2}.`},
		{path: "queue.preemption", usual: string(notebooks.PreemptOffered), check: func(c *Config) error {
			switch notebooks.Preemption(c.Queue.Preemption) {
			case notebooks.PreemptNothing, notebooks.PreemptOffered, notebooks.PreemptByRole:
				return nil
			}
			return fmt.Errorf("queue.preemption is %q; it may be off (no job is preempted), offered (jobs whose owners allow "+
				"it) or roles (those, and jobs of people with a lower role)", c.Queue.Preemption)
		}, doc: `Which jobs are preempted when a person waits for their GPU; they return to the queue. off: none.
offered: jobs whose owners allow it. roles: those, and jobs of people with a lower role; launches
of leads then go before those of members, and these before those of guests. Notebooks are never
preempted.`},
		{path: "queue.minimumRun", usual: "5m", check: func(c *Config) error {
			return c.Queue.MinimumRun.within("queue.minimumRun", 0, day, "5m")
		}, doc: "No job is preempted before it has run for this long."},

		{path: "idle", doc: `What happens to a GPU that is not used: neither the GPU nor processors, kernels, terminals or
network of its notebook have done anything for as long as "after". The owner gets a warning with
a countdown and can keep the notebook a few times; then it stops, and the home stays.
docs/idle.md explains the rules.`},
		{path: "idle.act", usual: string(usual.Act), check: func(c *Config) error {
			_, err := c.Idle.Policies(c.UsualProfiles())
			return err
		}, doc: "when-wanted (only while a launch waits that could use the GPU), always or never."},
		{path: "idle.after", usual: durationOf(usual.After).text, doc: "How long a GPU is unused before the warning."},
		{path: "idle.countdown", usual: durationOf(usual.Countdown).text,
			doc: "How long the notebook keeps running after the warning."},
		{path: "idle.extend", usual: durationOf(usual.Extend).text, doc: "For how long its owner can keep it."},
		{path: "idle.extensions", usual: fmt.Sprint(usual.Extensions), zero: true,
			doc: "How often in a row its owner can keep it."},
		{path: "idle.unused", usual: durationOf(usual.Unused).text,
			doc: "After this long without any work on its GPU, a notebook counts as unused whatever else it does.\n0: never."},
		{path: "idle.unopened", usual: durationOf(usual.Unopened).text,
			doc: "After this long, a notebook that waited in the queue and that its owner does not open goes to the\nnext " +
				"person. 0: never."},
		{path: "idle.maxAge", usual: durationOf(usual.MaxAge).text,
			doc: "Every notebook stops after running for this long. 0: never."},
		{path: "idle.profiles", doc: "What differs for a profile, by its slug: {gpu: {maxAge: 72h}}."},
		{path: "idle.groups", doc: "What differs for a group, by its name: {staff: {act: never}}."},
	}
}

// storageKeys are about disks and what is downloaded.
func storageKeys() []key {
	const large = math.MaxInt64
	keep := "keep nothing"
	return []key{
		{path: "storage", doc: "Where homes and shared folders are."},
		{path: "storage.measureEvery", usual: "10m", check: func(c *Config) error {
			return c.Storage.MeasureEvery.within("storage.measureEvery", time.Second, day, "10m")
		}, doc: `Homes and shared folders are measured while they are in use, and after a notebook has ended, at
most this often each.`},
		{path: "storage.shared", check: func(c *Config) error { return checkShared(c.Storage.Shared, c.DataDir) },
			doc: `A folder that every machine of the pool mounts at the same path (NFS, for example). Homes and
shared folders are stored there, and notebooks run on every machine. Empty: they are on the
head's disk.`},
		{path: "storage.export", check: func(c *Config) error { return c.Storage.checkExport() },
			doc: `nfs: homes stay on the head, which exports them to the machines of its pool and no others.
Needs nfs-kernel-server on the head.`},
		{path: "storage.scratch", usual: "20Gi", check: func(c *Config) error {
			return c.Storage.Scratch.within("storage.scratch", gibibyte, 100*tebibyte, "", "20Gi")
		}, doc: `How much each notebook and job may write outside its home, to /scratch and /tmp on its machine's
disk. It is deleted when the notebook or job ends. One that exceeds it is ended. There may be one
file for each 32 KiB.`},

		{path: "environments", doc: `Where "gpulab env" gets the packages of environments.`},
		{path: "environments.index", check: checkAddress("environments.index", func(c *Config) string {
			return c.Environments.Index
		}, environments.CheckIndex),
			doc: "An index of Python packages, for example https://pypi.example.org/simple. Empty: PyPI."},
		{path: "environments.debian", check: checkAddress("environments.debian", func(c *Config) string {
			return c.Environments.Debian
		}, environments.CheckMirror),
			doc: "A mirror of Debian, for R, for example https://mirror.example.org/debian. Empty: Debian's own."},
		{path: "environments.cache", usual: "10Gi", check: func(c *Config) error {
			return c.Environments.Cache.within("environments.cache", 0, large, keep, "10Gi")
		}, doc: "How much of what was downloaded is kept for the next environment."},

		{path: "packages", doc: `"pip install" in notebooks and jobs asks a cache on the head.`},
		{path: "packages.index", check: checkUpstream("packages.index", func(c *Config) string {
			return c.Packages.Index
		}, environments.CheckIndex),
			doc: "Where the cache gets packages. Empty: PyPI."},
		{path: "packages.cache", usual: "20Gi", check: func(c *Config) error {
			return c.Packages.Cache.within("packages.cache", gibibyte, large, keep, "20Gi")
		}, doc: "How much it keeps. 0: nothing."},

		{path: "models",
			doc: `Models of Hugging Face are downloaded through a cache on the head in the same way. Between machines
the cache is used only with network.encrypt.`},
		{path: "models.hub", check: checkUpstream("models.hub", func(c *Config) string {
			return c.Models.Hub
		}, environments.CheckHub),
			doc: "A mirror of Hugging Face. Empty: huggingface.co."},
		{path: "models.cache", usual: "50Gi", check: func(c *Config) error {
			return c.Models.Cache.within("models.cache", gibibyte, large, keep, "50Gi")
		}, doc: "How much it keeps. 0: there is no cache."},
	}
}

// otherKeys are about files, mail, the network and Kubernetes.
func otherKeys() []key {
	return []key{
		{path: "files", doc: `Where people copy files over SFTP ("gpulab cp", sftp, WinSCP) with their account.`},
		{path: "files.listen", usual: ":2022", check: (*Config).checkFiles,
			doc: `":2022" is that port on every address of this machine, "10.1.2.3:2022" on one address. off: none.`},
		{path: "mail", check: func(c *Config) error { return c.Mail.Check() },
			doc: `The server through which the lab sends mail: invitations, and the notices that people choose on
their account's page. Empty: the lab sends none. security is starttls, tls, or none for a server
on this machine; without port, the usual one is used. user signs in with the password in
passwordFile, which only root should be able to read; caFile holds the certificates to trust
instead of the system's. See docs/mail.md; "gpulab mail test" tests it:
  server: smtp.example.org
  security: starttls
  from: Vision lab <gpulab@example.org>
  user: gpulab@example.org
  passwordFile: /etc/gpulab/mail.secret`},
		{path: "network", doc: `Notebooks reach the internet and no private address: nothing in 10/8, 100.64/10, 172.16/12 and
192.168/16.`},
		{path: "network.allow", check: func(c *Config) error { return c.Network.checkAllow() },
			doc: `Private addresses that notebooks may reach: all of them, or those of some groups. Write addresses,
not names. Without ports (of TCP and UDP), all are open. The lab's own machines stay closed.
  allow:
    - name: nas
      to: 192.168.1.10
      ports: [2049, 445]
      groups: [vision]`},
		{path: "network.proxy", check: func(c *Config) error {
			_, _, err := c.Network.ProxyAddress()
			return err
		}, doc: `The proxy to the internet where there is no direct way, for example
http://proxy.example.org:3128: for notebooks, registries of images and identity providers.`},
		{path: "network.noProxy", check: func(c *Config) error { return c.Network.checkNoProxy() },
			doc: "What is reached without the proxy, for example [.example.org]."},
		{path: "network.encrypt", doc: "true: traffic between notebooks on different machines and the head is encrypted " +
			"with WireGuard."},

		{path: "k3s", doc: "For unusual machines."},
		{path: "k3s.podMaxPids", usual: "4096", check: func(c *Config) error {
			if c.K3s.PodMaxPIDs < 256 || c.K3s.PodMaxPIDs > 1<<20 {
				return fmt.Errorf("k3s.podMaxPids is %d; it may be 256, with which JupyterLab just runs, to %d", c.K3s.PodMaxPIDs,
					1<<20)
			}
			return nil
		}, doc: "How many processes and threads a notebook may have."},
		{path: "k3s.kubeletArgs", doc: `Arguments of the kubelet, without "--".`},
	}
}

// oneOf reports a value that is none of some words.
func oneOf[W ~string](key string, value W, words ...W) error {
	if slices.Contains(words, value) {
		return nil
	}
	var list []string
	for _, w := range words {
		list = append(list, string(w))
	}
	last := len(list) - 1
	return fmt.Errorf("%s is %q; it may be %s or %s", key, value, strings.Join(list[:last], ", "), list[last])
}

func checkNetworks(path string, of func(*Config) []Prefix) func(*Config) error {
	return func(c *Config) error {
		for _, n := range of(c) {
			if err := n.check(path); err != nil {
				return err
			}
		}
		return nil
	}
}

func checkPort(path string, of func(*Config) int) func(*Config) error {
	return func(c *Config) error {
		if port := of(c); port < 0 || port > 65535 {
			return fmt.Errorf("%s is %d, but ports go from 1 to 65535", path, port)
		}
		return nil
	}
}

// checkAddress reports what is wrong with an address of a server.
func checkAddress(path string, of func(*Config) string, check func(string) error) func(*Config) error {
	return func(c *Config) error {
		if err := check(of(c)); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
}

// checkUpstream is checkAddress for a server to whose address the cache appends paths.
func checkUpstream(path string, of func(*Config) string, check func(string) error) func(*Config) error {
	return checkAddress(path, of, func(address string) error {
		if err := check(address); err != nil {
			return err
		}
		if strings.ContainsAny(address, "?#") {
			return errors.New("the address may have neither a ? nor a #")
		}
		return nil
	})
}
