package config

import (
	"bytes"
	"fmt"
	"strings"
	"text/template"

	"sigs.k8s.io/yaml"

	"github.com/gpulab/gpulab/internal/atomicfile"
)

// configTemplate documents every key where people meet it. A key that the last release does not know is commented out
// while it has its default: a configuration that an upgrade has written must not keep anybody from rolling back.
var configTemplate = template.Must(template.New("config").Funcs(template.FuncMap{"yaml": func(v any) (string, error) {
	text, err := yaml.Marshal(v)
	return strings.TrimSpace(string(text)), err
}, "indent": func(n int, text string) string {
	space := strings.Repeat(" ", n)
	return space + strings.ReplaceAll(text, "\n", "\n"+space)
}}).Parse(`# gpulab's configuration. Every key may be left out. After a change: gpulab init

# The lab's name as the page shows it.
lab: {{printf "%q" .Lab}}

# This machine's address. Empty: the one with the default route, at every start.
address: {{printf "%q" .Address}}

# Further names by which people reach this machine, for example [gpu.lab.example].
# With "*.gpu.lab.example" beside it, each person's notebooks have a name below
# gpu.lab.example rather than a port. The name server needs that record, too.
names: [{{range $i, $n := .Names}}{{if $i}}, {{end}}{{printf "%q" $n}}{{end}}]

# A certificate from another authority, for the names that stand in it; put the one people use
# first among the names above. Files that are renewed are taken over by themselves.
tls:
  certificate: {{printf "%q" .TLS.Certificate}}
  key: {{printf "%q" .TLS.Key}}

# Reverse proxies in front of this lab, as addresses or networks. Of these alone is believed
# who the visitor is (X-Forwarded-For) and what was asked for (X-Forwarded-Host).
trustedProxies: [{{range $i, $n := .TrustedProxies}}{{if $i}}, {{end}}{{printf "%q" $n}}{{end}}]

# The lab's name for machines on the same network: gpulab is gpulab.local (mDNS).
# Of two labs that want one name, the later gets gpulab-2.local. off: none.
localName: {{printf "%q" .LocalName}}

# Pages, the lasting addresses of notebooks and services, and the port that only
# redirects to pages (0: off).
httpsPort: {{.HTTPSPort}}
hubPort: {{.HubPort}}
httpPort: {{.HTTPPort}}

# Ports through which services are to be had, one for each, as long as they run:
# in a browser, a port is what keeps a service from notebooks and from other
# services. Open them where a firewall stands before this machine. off: the lab
# has no services.
servicePorts: {{.ServicePorts}}

# Ports for notebooks. Each person has one, from their first visit on, and it never
# becomes another person's: in a browser, a port is what keeps one person's notebooks
# from another's. Open them where a firewall stands before this machine. A longer
# range makes room for more people. Without this key: {{.DefaultNotebookPorts}}.
{{if eq .NotebookPorts .DefaultNotebookPorts}}# {{end}}notebookPorts: {{.NotebookPorts}}

# Where further machines join and report; open once there are any, or an invitation.
nodesPort: {{.NodesPort}}

# While that is open the head is announced on the local network (mDNS), so that
# gpulab join finds it. true: it is not, and only codes lead to it.
nodesHidden: {{.NodesHidden}}

# real, simulated or none. Simulated GPUs compute nothing; they are for trying
# gpulab out on a machine without a card.
gpus: {{.GPUs}}
simulatedGPUs: {{.SimulatedGPUs}}

# How many notebooks share each GPU by taking turns (1: none does). They share its
# memory too, and nothing keeps one from taking all of it.
gpuSharing: {{.GPUSharing}}

# What keeps this machine from falling asleep, where systemd-logind could put it
# to sleep: notebooks (while some run, with the lid closed too), lid-open (the same,
# but with its lid closed it sleeps), or off.
stayAwake: {{.StayAwake}}

# The time zone of notebooks, jobs and services, such as Europe/Berlin. Without this key:
# the one that this machine has when they start.
{{if not .TimeZone}}# {{end}}timezone: {{printf "%q" .TimeZone}}

# All state: databases, homes, Kubernetes.
dataDir: {{printf "%q" .DataDir}}

# Container images. Empty: the folder "images" beside the program, then
# /usr/share/gpulab/images.
imagesDir: {{printf "%q" .ImagesDir}}

# The cards people launch notebooks from. None: the first two below, one without
# and one with a GPU. Yours take their place, so list those you want to keep.
# cpus and memory are limits (left out: half of the machine's); gpuModel and
# gpuMemory say which GPUs will do, as the page of a GPU shows them. A card that no
# machine can serve is shown to administrators only. image is the container image
# that the notebook starts from, instead of gpulab's own; it needs JupyterLab and
# JupyterHub's jupyterhub-singleuser in it. Bring it in with "gpulab images", or
# its registry is asked at the first launch.
#   - slug: cpu
#     title: CPU notebook
#     cpus: 2
#     memory: 4Gi
#   - slug: gpu
#     title: GPU notebook
#     cpus: 4
#     memory: 8Gi
#     gpus: 1
#   - slug: big
#     title: Large GPU
#     description: For models that need much memory.
#     cpus: 8
#     memory: 32Gi
#     gpus: 1
#     gpuModel: NVIDIA A100-SXM4-80GB
#     gpuMemory: 80Gi
#     image: quay.io/jupyter/pytorch-notebook:cuda12-2026-10-05
profiles:{{if .Profiles}}
{{yaml .Profiles}}{{else}} []{{end}}

# How people without an invitation get an account. off: an admin adds them.
# approval: the sign-in page lets anybody who reaches it ask, and an admin decides.
signUp: {{.SignUp}}

# Outside identity providers: OpenID Connect, OAuth 2, LDAP. docs/signin.md has an
# example for each; "gpulab signin check" tries them. Secrets stand in files of
# their own. This one is a Keycloak:
#   - name: university
#     type: keycloak
#     title: Example University
#     url: https://id.example.org
#     realm: staff
#     clientID: gpulab
#     clientSecretFile: /etc/gpulab/university.secret
#     rules:
#       - groups: [gpu-admins]
#         role: admin
#       - groups: [students, staff]
#         role: member
signin:{{if .SignIn}}
{{yaml .SignIn}}{{else}} []{{end}}

# Who comes in over a tailnet, once "gpulab tailnet up" has brought the lab into one.
# signIn: off (people sign in as elsewhere), offer (whom allow names may come in as who
# they are in the tailnet, without a password) or require (over the tailnet others get no
# page, and no password is taken). allow names people, groups, tags of machines that are
# nobody's, and people of other tailnets that the machine is shared with; role, group of
# the lab, or both:
#   allow:
#     - {login: ada@example.org, role: admin}
#     - {login: "*@example.org", role: member, labGroup: vision}
#     - {group: "group:staff", role: lead}
#     - {tag: "tag:kiosk", role: guest}
#     - {shared: guest@example.com, role: guest}
# accounts: create makes an account for whoever has none, existing does not.
tailnet:
  signIn: {{.Tailnet.SignIn}}
  accounts: {{printf "%q" .Tailnet.Accounts}}
  allow:{{if .Tailnet.Allow}}
{{yaml .Tailnet.Allow | indent 4}}{{else}} []{{end}}

# Who may read https://LAB/metrics: administrators, Prometheus with the token in
# dataDir/metrics-token ("gpulab metrics --scrape-config" prints its job), and
# these networks without it, for example [10.1.2.0/24]. enabled: false takes
# /metrics away.
metrics:
  enabled: {{.Metrics.On}}
  networks: [{{range $i, $n := .Metrics.Networks}}{{if $i}}, {{end}}{{printf "%q" $n}}{{end}}]

# Quotas are set while the lab runs ("gpulab quota", or the page Quotas). Hours "this
# term" count from the day termBegins, for example 2026-10-12. When somebody's GPU
# hours are used up, their notebooks with a GPU go on for this long, with a notice.
quotas:
  termBegins: {{printf "%q" .Quotas.TermBegins}}
  grace: {{printf "%q" .Quotas.Grace}}

# When GPUs are short, who used fewer of them in the past gets one first. Past use
# counts half after halfLife (168h is a week), and is counted anew every sampling.
# A group goes first while it holds fewer GPUs than its share; others use what it
# leaves. See docs/queue.md:
#   shares: {vision: 2}
# preemption says which jobs give way to whoever waits for their GPU; they go back into
# the line: off (none), offered (those whose owners have said so), or roles (those, and
# jobs of people of a lower role; leads' launches then go before members', and these
# before guests'). Notebooks never do. No job gives way before minimumRun has passed.
queue:
  halfLife: {{printf "%q" .Queue.HalfLife}}
  sampling: {{printf "%q" .Queue.Sampling}}
{{- if .Queue.Shares}}
  shares:
{{yaml .Queue.Shares | indent 4}}
{{- end}}
  preemption: {{printf "%q" .Queue.Preemption}}
  minimumRun: {{printf "%q" .Queue.MinimumRun}}

# What becomes of a GPU that nobody uses: neither it nor processors, kernels, terminals
# or network have done anything for as long as "after". act: when-wanted (only while
# somebody waits whom it would serve), always or never. The owner is warned, with a
# countdown, and can keep the notebook a few times; then it stops, and the home stays.
# Whatever else it does, a notebook counts as unused once its GPU has done nothing for
# as long as "unused" (0 = never). One that was waited for and that nobody opens goes
# to the next after "unopened" (0 = never). maxAge ends every notebook that has run for
# so long (0 = none). See docs/idle.md for what differs by profile and group.
idle:
  act: {{printf "%q" .Idle.Act}}
  after: {{printf "%q" .Idle.After}}
  countdown: {{printf "%q" .Idle.Countdown}}
  extend: {{printf "%q" .Idle.Extend}}
  extensions: {{.Idle.Extensions}}
  unused: {{printf "%q" .Idle.Unused}}
  unopened: {{printf "%q" .Idle.Unopened}}
  maxAge: {{printf "%q" .Idle.MaxAge}}
{{- if .Idle.Profiles}}
  profiles:
{{yaml .Idle.Profiles | indent 4}}
{{- end}}
{{- if .Idle.Groups}}
  groups:
{{yaml .Idle.Groups | indent 4}}
{{- end}}

# Homes and shared folders are measured again while they are in use, and after a
# notebook has ended: at most this often each, with what the disk has left over.
storage:
  measureEvery: {{printf "%q" .Storage.MeasureEvery}}
  # A folder that every machine of the pool mounts at the same path (NFS, for
  # example): homes and shared folders lie in it, and notebooks run on every machine.
  # Empty: they lie on the disk of the head, and notebooks run there only.
  shared: {{printf "%q" .Storage.Shared}}
  # nfs: homes stay where they are, and the head exports them to the machines of its
  # pool alone, which mount them by themselves. Needs nfs-kernel-server on the head.
  export: {{printf "%q" .Storage.Export}}
  # What each notebook and job may write beside its home, on its machine's own disk:
  # in /scratch, and in /tmp. It is gone when that ends. One that goes beyond is ended.
  # It may have one file for each 32 KiB of this.
  scratch: {{printf "%q" .Storage.Scratch}}

# Environments ("gpulab env") are built from packages of PyPI, or of an index of your
# own, such as https://pypi.example.org/simple; R's come from Debian, or from a mirror
# such as https://mirror.example.org/debian. So much of what was downloaded is kept for
# the next one.
environments:
  index: {{printf "%q" .Environments.Index}}
  debian: {{printf "%q" .Environments.Debian}}
  cache: {{printf "%q" .Environments.Cache}}

# "pip install" in notebooks and jobs asks a cache on the head, which gets packages from
# PyPI, or from an index of your own, and keeps so much of them for whoever wants the
# same. 0 keeps nothing.
packages:
  index: {{printf "%q" .Packages.Index}}
  cache: {{printf "%q" .Packages.Cache}}

# Models of Hugging Face come over a cache on the head in the same way; "hub" is a mirror
# of it. 0 leaves the cache out. Between machines it is used with network.encrypt only.
models:
  hub: {{printf "%q" .Models.Hub}}
  cache: {{printf "%q" .Models.Cache}}

# Where people bring files in and out over SFTP ("gpulab cp", sftp, WinSCP) with their
# account: ":2022" on every address of this machine, "10.1.2.3:2022" on that one, or off.
files:
  listen: {{printf "%q" .Files.Listen}}

# The server that takes the lab's mails: invitations, and what people choose on the
# page of their account. Empty: the lab sends none. security is starttls, tls, or none
# for a server on this machine; port is left out for the usual one. user signs in with
# the password in passwordFile, which only root should be able to read; caFile holds the
# certificates to trust instead of the system's. See docs/mail.md; "gpulab mail test" tries it:
#   server: smtp.example.org
#   security: starttls
#   from: Vision lab <gpulab@example.org>
#   user: gpulab@example.org
#   passwordFile: /etc/gpulab/mail.secret
mail:{{if .Mail.On}}
{{yaml .Mail | indent 2}}{{else}} {}{{end}}

# Notebooks reach the internet, and no private address: nothing in 10/8,
# 100.64/10, 172.16/12 and 192.168/16. allow opens some, for everybody or for
# groups; names are not taken, ports (of TCP and UDP) may be left out for all:
#   allow:
#     - name: nas
#       to: 192.168.1.10
#       ports: [2049, 445]
#       groups: [vision]
# The lab's own machines stay closed whatever is allowed. proxy is the way to the
# internet where there is no other, such as http://proxy.example.org:3128, for
# notebooks, for registries of images and for sign-in providers; noProxy is what is
# reached without it, such as [.example.org]. encrypt: true has what goes between
# notebooks of different machines and the head encrypted, with WireGuard.
network:
  allow:{{if .Network.Allow}}
{{yaml .Network.Allow | indent 4}}{{else}} []{{end}}
  proxy: {{printf "%q" .Network.Proxy}}
  noProxy: [{{range $i, $n := .Network.NoProxy}}{{if $i}}, {{end}}{{printf "%q" $n}}{{end}}]
  encrypt: {{.Network.Encrypt}}

# For unusual machines: how many processes and threads a notebook may have, and
# further arguments of the kubelet, without "--".
k3s:
  podMaxPids: {{.K3s.PodMaxPIDs}}
  kubeletArgs: [{{range $i, $n := .K3s.KubeletArgs}}{{if $i}}, {{end}}{{printf "%q" $n}}{{end}}]
`))

// Save writes the file if its content would differ, in one step.
func Save(path string, c Config) (changed bool, err error) {
	var buf bytes.Buffer
	if err := configTemplate.Execute(&buf, c); err != nil {
		return false, err
	}
	if changed, err = atomicfile.Update(path, buf.Bytes(), 0o644, 0o755); err != nil {
		return false, fmt.Errorf("the configuration: %w", err)
	}
	return changed, nil
}
