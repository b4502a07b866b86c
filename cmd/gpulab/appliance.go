package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"github.com/gpulab/gpulab/assets"
	"github.com/gpulab/gpulab/internal/api"
	"github.com/gpulab/gpulab/internal/charts"
	"github.com/gpulab/gpulab/internal/config"
	"github.com/gpulab/gpulab/internal/ctl"
	"github.com/gpulab/gpulab/internal/deviceplugin"
	"github.com/gpulab/gpulab/internal/diskspace"
	"github.com/gpulab/gpulab/internal/embedk8s"
	"github.com/gpulab/gpulab/internal/environments"
	"github.com/gpulab/gpulab/internal/fleet"
	"github.com/gpulab/gpulab/internal/gpu"
	"github.com/gpulab/gpulab/internal/history"
	"github.com/gpulab/gpulab/internal/hoststat"
	"github.com/gpulab/gpulab/internal/idle"
	"github.com/gpulab/gpulab/internal/mail"
	"github.com/gpulab/gpulab/internal/nodes"
	"github.com/gpulab/gpulab/internal/notebooks"
	"github.com/gpulab/gpulab/internal/nvidiadriver"
	"github.com/gpulab/gpulab/internal/oidc"
	"github.com/gpulab/gpulab/internal/podresources"
	"github.com/gpulab/gpulab/internal/power"
	"github.com/gpulab/gpulab/internal/queue"
	"github.com/gpulab/gpulab/internal/quota"
	"github.com/gpulab/gpulab/internal/sftpd"
	"github.com/gpulab/gpulab/internal/signin"
	"github.com/gpulab/gpulab/internal/storage"
	"github.com/gpulab/gpulab/internal/store"
	"github.com/gpulab/gpulab/internal/tailnet"
	"github.com/gpulab/gpulab/internal/tenancy"
	"github.com/gpulab/gpulab/internal/units"
	"github.com/gpulab/gpulab/internal/users"
	"github.com/gpulab/gpulab/internal/version"
	"github.com/gpulab/gpulab/internal/webca"
	"github.com/gpulab/gpulab/internal/webui"
	"github.com/gpulab/gpulab/packaging/simdriver"
)

// Names of the stages on the way to a lab that is ready.
const (
	stageAddress    = "address"
	stageRuntime    = "runtime"
	stageDriver     = "driver"
	stageKubernetes = "kubernetes"
	stageNode       = "node"
	stageImages     = "images"
	stageCharts     = "charts"
	stageNotebook   = "notebook"
	stageGPUs       = "gpus"
)

// notebookImage is what notebooks start from: by far the largest image, and the
// one that no part of the lab itself needs.
const notebookImage = "notebook"

// appliance is the whole lab: every part, wired by hand in this one file.
//
// run opens the state, the pages and the control socket first, so that people
// can watch, and then brings up the rest in bootstrap, as often as that takes.
// Parts that need the cluster exist from the moment its API answers (attach).
type appliance struct {
	cfg  config.Config
	app  *app
	boot *boot

	store   *store.Store
	people  *users.Service
	numbers *hostNumbers
	certs   *webca.Certs
	ownCert *webca.Own // nil without one
	fleet   *fleet.Fleet
	history *history.Recorder
	quotas  *quota.Service
	idle    *idle.Service // nil before the cluster is there
	storage *storage.Service
	signin  *signin.Service // outside identity providers
	mail    *mail.Service   // sends nothing without a server
	proxy   *proxyName      // the way to the internet, where the lab has one
	names   nameWatch       // whether notebooks can look up names outside
	tailnet *tailnet.Service
	visits  signin.Way    // what the rules make of who comes over the tailnet
	files   *sftpd.Server // nil where no files are taken
	id      embedk8s.Identity
	images  embedk8s.ImageSet
	hub     charts.HubSecrets

	filesIdentity sftpd.Identity

	pool *pool // the machines that have joined

	host    *hoststat.Host
	busy    *hostWatch
	kills   recentKills
	titles  titles // of machines
	placing placing
	// machinesFor are the machines that are for some people only, by name.
	machinesFor atomic.Pointer[map[string]nodes.Limit]
	// cordons are the machines that take no new work.
	cordons  *cordons
	disk     *diskspace.Watch
	power    *power.Keeper // keeps this machine awake
	outlived outliving     // the gpulab before
	// asleep is when this machine slept last; nil if that is not known.
	asleep atomic.Pointer[power.Sleep]

	where  atomic.Pointer[place]  // it may change at any time
	local  localName              // on the network where it is
	former former                 // where it was before
	before atomic.Pointer[string] // the version that is kept for a rollback
	mend   [2]chan struct{}       // a token when the objects, and the charts, are to be looked after

	// canLaunch is set once the image of notebooks is there.
	canLaunch atomic.Bool
	// checking is held while a test pod computes that somebody asked for.
	checking sync.Mutex

	imageNeeds sync.Map // what images ask of the GPUs, by name: a gpu.Requirement, as was found out last

	cluster  atomic.Pointer[embedk8s.Cluster]
	client   atomic.Pointer[kubernetes.Clientset]
	attached atomic.Pointer[attached]
	// once is what further tries of the start find running.
	once struct{ driver, kubernetes, sweep sync.Once }

	proxies []netip.Prefix // trusted, in front of both ports
	pages   *switchHandler // port 443
	labs    *switchHandler // port 8443, and those of people's notebooks
	origins *notebooks.Origins
	labels  *notebooks.Labels // DNS names of notebooks, nil for none
}

// attached are the parts that need the cluster.
type attached struct {
	kube      *notebooks.KubeCluster
	notebooks *notebooks.Service
	proxy     *notebooks.Proxy
	line      *queue.Line
	monitor   *gpu.Monitor
	memory    *gpu.MemoryLimiter
	tenancy   *tenancy.Tenancy
	people    *people
	lending   *lending
	images    *embedk8s.LabImages

	environments *environments.Service
}

func newAppliance(cfg config.Config, a *app) (*appliance, error) {
	inputs, err := cfg.Inputs()
	if err != nil {
		return nil, err
	}
	stages := []string{stageAddress, stageRuntime, stageKubernetes, stageNode, stageImages, stageCharts, stageNotebook}
	switch cfg.GPUs {
	case config.GPUsSimulated:
		stages = append(slices.Insert(stages, 2, stageDriver), stageGPUs)
	case config.GPUsReal:
		stages = append(stages, stageGPUs)
	}
	serving := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	return &appliance{
		cfg: cfg, app: a, fleet: fleet.New(), boot: newBoot(serving, inputs, stages...),
		mend:  [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)},
		pages: newSwitchHandler(), labs: newSwitchHandler(), proxies: config.Prefixes(cfg.TrustedProxies),
	}, nil
}

// run runs the lab until ctx ends. Pods keep running after it.
func (l *appliance) run(ctx context.Context) error {
	l.outlived = whatOutlived()
	if err := l.open(ctx); err != nil {
		keepLock(nil) // it may take long until somebody mends that
		return err
	}
	defer l.store.Close()
	g, ctx := errgroup.WithContext(ctx)
	if err := errors.Join(l.listen(ctx, g), l.listenFiles(ctx, g)); err != nil {
		return err
	}
	g.Go(func() error { return ctl.Serve(ctx, l.app.socket, l) })
	g.Go(func() error { return l.disk.Run(ctx) })
	g.Go(func() error { return l.keepCertificates(ctx) })
	g.Go(func() error { return l.keepLocalName(ctx) })
	g.Go(func() error { return l.people.Run(ctx) })
	g.Go(func() error { return l.certs.Run(ctx) })
	g.Go(func() error { return l.proxy.run(ctx) })
	g.Go(func() error { return l.names.run(ctx, lookAtNames(l.app)) })
	g.Go(func() error { return l.tailnet.Run(ctx) })
	g.Go(func() error { return l.power.Run(ctx) })
	g.Go(func() error { return l.mail.Run(ctx) })
	g.Go(func() error { return l.mail.Watch(ctx, mailEvery, l.mailSources()...) })
	l.followLogs(ctx, g)
	g.Go(func() error { return l.signin.Watch(ctx) })
	g.Go(func() error { return l.pool.run(ctx, g) })
	g.Go(func() error { return l.busy.run(ctx) })
	g.Go(func() error {
		return (&embedk8s.PodBounds{CgroupRoot: embedk8s.CgroupRoot(l.cfg.K3s.KubeletArgs)}).Run(ctx)
	})
	g.Go(func() error {
		return embedk8s.LXCFS(l.cfg.DataDir, embedk8s.CgroupRoot(l.cfg.K3s.KubeletArgs)).Run(ctx)
	})
	g.Go(func() error { return l.cordons.run(ctx) })
	g.Go(func() error { return l.history.Run(ctx, l.fleet.Subscribe(ctx)) })
	g.Go(func() error {
		if err := l.start(ctx, g); err != nil {
			return err
		}
		debug.FreeOSMemory() // a start takes more than what follows
		l.keepVersion(ctx)
		return l.keep(ctx)
	})
	g.Go(func() error { return l.watchdog(ctx) })
	g.Go(func() error { return l.awaitDriver(ctx) })
	notify(sd.SdNotifyReady)
	context.AfterFunc(ctx, func() { notify(sd.SdNotifyStopping) })
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// open opens what lies on disk: databases, identity, certificates, secrets.
func (l *appliance) open(ctx context.Context) (err error) {
	if err := diskspace.Suits(l.cfg.DataDir); err != nil {
		return err
	}
	// Others may pass through to homes, and see nothing.
	if err := os.MkdirAll(l.cfg.DataDir, 0o711); err != nil {
		return fmt.Errorf("the data directory: %w", err)
	}
	l.disk = l.newDiskWatch() // first: on a full disk it makes room for the databases
	if l.store, err = store.Open(ctx, l.cfg.DataDir); err != nil {
		return err
	}
	l.people = users.New(l.store.DB())
	l.numbers = newHostNumbers()
	l.people.AvoidNumbers(l.numbers.taken)
	if err := l.noteVersion(ctx); err != nil {
		return err
	}
	if l.origins, err = notebooks.NewOrigins(ctx, l.store.DB(), l.cfg.NotebookPorts.List(), portFree); err != nil {
		return err
	}
	if err := l.openLabels(); err != nil {
		return err
	}
	l.findBefore(ctx)
	l.signin, err = signin.New(signin.ServiceConfig{
		Providers: l.cfg.SignIn, URL: l.url, Proxy: l.cfg.Network.ProxyFor(), Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	if err := l.people.NormalizeRealms(ctx, signin.NormalRealm); err != nil {
		return err
	}
	l.people.UseDirectories(l.signin.Directories()...)
	l.people.UseRules(l.signin.Rules())
	l.openMail()
	l.history = history.New(history.Config{Store: l.store})
	l.quotas = l.newQuotas()
	if err := l.openShared(ctx); err != nil {
		return err
	}
	if err := l.openExport(ctx); err != nil {
		return err
	}
	if err := l.spareNumbers(ctx); err != nil {
		return err
	}
	l.storage = l.newStorage()
	if l.pool, err = newPool(ctx, l); err != nil {
		return err
	}
	if err := errors.Join(l.rereadTitles(ctx), l.rereadPlacing(ctx), l.rereadLimits(ctx)); err != nil {
		return err
	}
	if l.cordons, err = newCordons(ctx, l); err != nil {
		return err
	}
	if l.id, err = embedk8s.LoadIdentity(l.cfg.DataDir); err != nil {
		return err
	}
	here, err := l.findPlace()
	if err != nil {
		return err
	}
	l.where.Store(here)
	if err := l.loadFormer(ctx); err != nil {
		return err
	}
	if l.proxy, err = newProxyName(l.cfg.Network); err != nil {
		return err
	}
	if l.ownCert, err = l.cfg.TLS.Open(); err != nil {
		slog.Warn("the lab shows a certificate of its own making until this is mended", "err", err)
	}
	if err := l.newTailnet(); err != nil {
		return err
	}
	if l.certs, err = webca.Ensure(tlsDir(l.cfg), l.certNames(), l.cfg.Wildcards()...); err != nil {
		return err
	}
	l.certs.Prefer(l.ownCert)
	if l.hub, err = loadHubSecrets(l.cfg.DataDir); err != nil {
		return err
	}
	if err := l.newFiles(); err != nil {
		return err
	}
	if l.host, err = hoststat.New(); err != nil {
		return err
	}
	l.busy = &hostWatch{host: l.host, dir: l.cfg.DataDir}
	if err := l.startWithQuotas(ctx); err != nil {
		return err
	}
	l.power = l.newPower(ctx)
	dir, err := l.cfg.FindImages()
	if err != nil {
		return err
	}
	l.images, err = embedk8s.OpenImages(dir, "pause", "coredns", "nvidia-device-plugin", "kueue", "packages", "hub",
		"notebook")
	return err
}

func tlsDir(cfg config.Config) string { return filepath.Join(cfg.DataDir, "tls") }

// url is where people open the lab.
func (l *appliance) url() string {
	return l.cfg.URL(func() netip.Addr { return l.where.Load().address })
}

// bootstrap goes the way from nothing to ready. Everything on it finds out
// what is there already, so it may be interrupted and run again. What goes on
// after it is started once, in g.
func (l *appliance) bootstrap(ctx context.Context, g *errgroup.Group) error {
	if err := l.waitPlace(ctx); err != nil {
		return err
	}
	var runtime embedk8s.Runtime
	err := l.boot.do(stageRuntime, func(st *stage) (err error) {
		archive, ok := assets.Bundle()
		if !ok {
			return embedk8s.ErrNoBundle
		}
		var did bool
		runtime, did, err = embedk8s.Stage(ctx, archive, l.cfg.DataDir, func(done, total int64) {
			st.say("unpacking, %d %%", 100*done/max(total, 1))
		})
		assets.ReleaseBundle()
		if did {
			st.changed()
		}
		st.say("%s", runtime.Hash)
		return err
	})
	if err != nil {
		return err
	}
	switch l.cfg.GPUs {
	case config.GPUsSimulated:
		if err := l.startDriver(ctx, g, runtime); err != nil {
			return err
		}
	case config.GPUsReal:
		prepareRealGPUs(ctx, l.cfg)
	}
	client, err := l.startKubernetes(ctx, g, runtime)
	if err != nil {
		return err
	}
	if err := l.prepareCluster(ctx, client); err != nil {
		return err
	}
	if l.attached.Load() == nil {
		if err := l.attach(ctx, g, client, runtime); err != nil {
			return err
		}
	}
	// While the parts of the lab start, there is time for the image that none
	// of them needs, and for trying a GPU with it.
	serving := ctx
	offered := make(chan struct{}) // closed once GPUs are offered as this version does
	return all(ctx,
		func(ctx context.Context) error {
			return l.applyCharts(ctx, func(release string) {
				if release == charts.DevicePlugin {
					close(offered)
				}
			})
		},
		func(ctx context.Context) error {
			if err := l.importImages(ctx, stageNotebook, l.images.Only(notebookImage)); err != nil {
				return err
			}
			l.once.sweep.Do(func() { g.Go(func() error { return l.sweepImages(serving) }) })
			l.canLaunch.Store(true)
			l.attached.Load().notebooks.Wake()
			if l.cfg.GPUs == config.GPUsNone {
				return nil
			}
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-offered:
				return l.checkGPUs(ctx, client)
			}
		})
}

// startDriver installs the simulated NVIDIA driver and keeps its readings moving.
func (l *appliance) startDriver(ctx context.Context, g *errgroup.Group, rt embedk8s.Runtime) error {
	return l.boot.do(stageDriver, func(st *stage) error {
		if err := simdriver.Install(ctx, filepath.Join(rt.Dir, "simdriver"), l.simRoot(), l.cfg.SimulatedGPUs); err != nil {
			return err
		}
		st.say("%d simulated GPUs; they compute nothing", l.cfg.SimulatedGPUs)
		l.once.driver.Do(func() { g.Go(func() error { return simdriver.Run(ctx, l.simRoot()) }) })
		return nil
	})
}

// makeDevices makes the device files of a real driver, before Kubernetes starts what offers the GPUs.
func makeDevices(ctx context.Context) {
	if err := nvidiadriver.MakeDevices(ctx); err != nil {
		slog.Error("CUDA programs may fail: not all device files of the driver could be made", "err", err)
	}
}

func (l *appliance) simRoot() string { return filepath.Join(l.cfg.DataDir, "simdriver", "root") }

// startKubernetes starts k3s (or takes over a running one) and brings the
// images in as soon as containerd answers.
func (l *appliance) startKubernetes(ctx context.Context, g *errgroup.Group,
	rt embedk8s.Runtime) (*kubernetes.Clientset, error) {
	here := l.where.Load()
	cluster := l.cluster.Load()
	if cluster == nil {
		cluster = embedk8s.New(embedk8s.Config{
			DataDir: l.cfg.DataDir, Runtime: rt, Identity: l.id, Address: here.address, Interface: here.iface,
			PauseImage: l.images.Refs()["pause"], PodMaxPIDs: l.cfg.K3s.PodMaxPIDs, KubeletArgs: l.cfg.K3s.KubeletArgs,
			Reserved: embedk8s.ThisMachine(),
			Proxy:    l.cfg.Network.Proxy, NoProxy: l.cfg.Network.NoProxy, Encrypt: l.cfg.Network.Encrypt,
		})
		l.cluster.Store(cluster)
	}
	var client *kubernetes.Clientset
	serving := ctx // k3s runs for longer than what waits for it here
	err := all(ctx,
		func(ctx context.Context) error {
			err := l.boot.do(stageKubernetes, func(st *stage) (err error) {
				if err := canEncrypt(l.cfg.Network.Encrypt); err != nil {
					return err
				}
				if err := cluster.Claim(); err != nil {
					return err
				}
				if err := cluster.FollowData(); err != nil {
					slog.Warn("what notebooks write beside their homes stays on the disk of the system", "err", err)
				}
				did, err := cluster.Prepare()
				if err != nil {
					return err
				}
				if did {
					st.changed()
				}
				l.once.kubernetes.Do(func() {
					g.Go(func() error { return cluster.Run(serving) })
					g.Go(func() error { cluster.Watch(serving, l.failing); return nil })
				})
				limited, cancel := context.WithTimeout(ctx, kubernetesPatience)
				defer cancel()
				if client, err = cluster.WaitAPI(limited, func(why string) { st.say("%s", why) }); err == nil {
					st.say("the API answers")
				}
				return l.explainKubernetes(ctx, err)
			})
			if err != nil {
				return err
			}
			return l.boot.do(stageNode, func(st *stage) error {
				limited, cancel := context.WithTimeout(ctx, kubernetesPatience)
				defer cancel()
				err := cluster.WaitNode(limited, client, func(why string) { st.say("%s", why) })
				st.say("%s at %s", l.id.NodeName, here.address)
				return l.explainKubernetes(ctx, err)
			})
		},
		func(ctx context.Context) error {
			return l.importImages(ctx, stageImages, l.images.Without(notebookImage))
		},
	)
	if err != nil {
		return nil, err
	}
	l.client.Store(client)
	return client, nil
}

// importImages brings images into containerd as soon as that answers.
func (l *appliance) importImages(ctx context.Context, name string, set embedk8s.ImageSet) error {
	return l.boot.do(name, func(st *stage) error {
		cluster := l.cluster.Load()
		limited, cancel := context.WithTimeout(ctx, kubernetesPatience)
		defer cancel()
		if err := cluster.WaitContainerd(limited, func(why string) { st.say("%s", why) }); err != nil {
			return l.explainKubernetes(ctx, err)
		}
		n, err := cluster.ImportImages(ctx, set, func(underWay []string, done, total int) {
			st.say("importing %s (%d of %d done)", strings.Join(underWay, ", "), done, total)
		})
		if n > 0 {
			st.changed()
		}
		st.say("%d new, %d there before", n, len(set.Images)-n)
		return err
	})
}

// prepareCluster applies what the charts build on.
func (l *appliance) prepareCluster(ctx context.Context, client kubernetes.Interface) error {
	if err := applyObjects(ctx, client, l.certs.CAPEM(), l.where.Load().address, l.cfg.HTTPSPort); err != nil {
		return err
	}
	present := map[string]*string{"nvidia.com/gpu.present": nil}
	if l.cfg.GPUs == config.GPUsNone {
		if err := labelFeatures(ctx, client, l.id.NodeName, nil); err != nil {
			return err
		}
	} else {
		yes := "true"
		present["nvidia.com/gpu.present"] = &yes
	}
	return labelNode(ctx, client, l.id.NodeName, present)
}

func (l *appliance) featuresDir() string { return filepath.Join(l.cfg.DataDir, "features") }
func (l *appliance) hubStateDir() string { return filepath.Join(l.cfg.DataDir, "hub") }
func (l *appliance) homesDir() string    { return filepath.Join(l.cfg.DataDir, "homes") }

// driverRootOf is where the NVIDIA driver's files lie.
func driverRootOf(gpus, simRoot string) string {
	if gpus == config.GPUsSimulated {
		return simRoot
	}
	return "/"
}

// hubUID owns the hub's database and is the user of the hub's image: a number
// below those of people, which no account of the machine has. Its owner could
// change the hub's database.
const hubUID = 19999

// applyCharts brings the cluster's parts to what this version wants; ready is
// told each release that is.
func (l *appliance) applyCharts(ctx context.Context, ready func(release string)) error {
	return l.boot.do(stageCharts, func(st *stage) error {
		releases, err := l.releases()
		if err != nil {
			return err
		}
		settled := map[string]bool{}
		err = l.charts().Apply(ctx, releases, func(e charts.Event) {
			if e.Phase.Done() {
				settled[e.Release] = true
				switch e.Phase {
				case charts.Failed, charts.Skipped:
				case charts.Unchanged:
					ready(e.Release)
				default:
					st.changed()
					ready(e.Release)
				}
			}
			st.say("%d of %d; %s: %s", len(settled), len(releases), e.Release, strings.TrimSpace(string(e.Phase)+" "+e.Detail))
		})
		if err != nil {
			return err
		}
		if err := l.waitHub(ctx, st); err != nil {
			return err
		}
		releases = slices.DeleteFunc(releases, func(r charts.Release) bool { return r.Absent })
		st.say("%d releases", len(releases))
		return nil
	})
}

// waitHub waits until hub and gpulab reach each other. A hub that starts anew
// does so before it says that it is ready; one that has gone on may be led to
// an earlier address of this machine for some seconds.
func (l *appliance) waitHub(ctx context.Context, st *stage) error {
	for end := time.Now().Add(time.Minute); !l.attached.Load().notebooks.Connected(); {
		if time.Now().After(end) {
			return errors.New("JupyterHub and gpulab do not reach each other; see `gpulab logs hub`")
		}
		st.say("JupyterHub does not reach gpulab yet")
		if !sleep(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
	return nil
}

// releases are the charts as this version and configuration want them, after
// the folders that they mount.
func (l *appliance) releases() ([]charts.Release, error) {
	if err := os.MkdirAll(l.hubStateDir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.Chown(l.hubStateDir(), hubUID, hubUID); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(l.featuresDir(), 0o755); err != nil {
		return nil, err
	}
	packages, err := l.packageCache()
	if err != nil {
		return nil, err
	}
	gpus := l.poolGPUs()
	return charts.Plan(charts.Inputs{
		Images: l.images.Refs(), ClusterDNS: l.id.ClusterDNS().String(), UpstreamDNS: upstreamDNS(),
		Networks:  []string{l.id.ClusterCIDR.String(), l.id.ServiceCIDR.String()},
		HTTPSPort: l.cfg.HTTPSPort,
		HasGPU:    gpus != config.GPUsNone, Simulated: gpus == config.GPUsSimulated, Sharing: l.cfg.GPUSharing,
		DriverRoot: driverRootOf(gpus, l.simRoot()),
		HookPath:   filepath.Join(embedk8s.Current(l.cfg.DataDir), "nvidia-cdi-hook"),
		Hub:        l.hub, HubStateDir: l.hubStateDir(), ScratchSize: l.cfg.Storage.Scratch.String(),
		FeaturesDir: l.featuresDir(),
		NotebookEnv: l.cfg.Network.ProxyEnv(l.id), Profiles: notebooks.ProfileList(l.attached.Load().notebooks.Profiles()),
		Packages: packages,
	}), nil
}

// upstreamDNS are the name servers that the cluster's asks for names outside of it.
func upstreamDNS() (list []string) {
	for _, a := range embedk8s.Resolvers() {
		list = append(list, a.String())
	}
	return list
}

func (l *appliance) charts() *charts.Manager {
	return charts.New(l.cluster.Load().Kubeconfig(), slog.Default())
}

// checkGPUs waits for the GPUs and proves once per driver and image that a pod
// can use one.
func (l *appliance) checkGPUs(ctx context.Context, client kubernetes.Interface) error {
	return l.boot.do(stageGPUs, func(st *stage) error {
		want := 1
		if l.cfg.GPUs == config.GPUsSimulated {
			want = l.cfg.SimulatedGPUs
		}
		if err := waitGPUs(ctx, client, l.id.NodeName, want*l.cfg.GPUSharing, l.withheldGPUs, st); err != nil {
			return err
		}
		snap, _ := l.attached.Load().monitor.Latest()
		image := l.images.Refs()["notebook"]
		proof := strings.Join([]string{string(l.cfg.GPUs), snap.DriverVersion, image}, " ")
		marker := filepath.Join(l.cfg.DataDir, "gpu-check")
		if old, err := os.ReadFile(marker); err == nil && string(old) == proof {
			st.say("%d %s, tested before", want, gpuWord(string(l.cfg.GPUs)))
			return nil
		}
		st.say("a test pod is computing on one")
		saw, err := checkGPU(ctx, client, image, l.id.NodeName)
		if errors.Is(err, errNoGPUFree) { // as after an upgrade under notebooks
			st.say("none is free to be tested; the next start tries again, and `gpulab gpus check` at any time")
			return nil
		}
		if err != nil {
			return err
		}
		st.changed()
		st.say("a test pod saw %s", saw)
		return os.WriteFile(marker, []byte(proof), 0o600)
	})
}

// withheldGPUs is how many of this machine's GPUs, or shares of them, are kept
// from new pods.
func (l *appliance) withheldGPUs() int {
	n := 0
	for _, s := range l.fleet.Snapshots() {
		for _, g := range s.GPUs {
			if g.Withheld != "" && s.Node == l.id.NodeName {
				n += max(g.Slots, 1)
			}
		}
	}
	return n
}

func gpuWord(mode string) string {
	if mode == config.GPUsSimulated {
		return "simulated GPUs"
	}
	return "GPUs"
}

// attach builds the parts that need the cluster and opens the pages.
func (l *appliance) attach(ctx context.Context, g *errgroup.Group, client *kubernetes.Clientset,
	rt embedk8s.Runtime) error {
	log := slog.Default()
	kube, err := notebooks.NewKubeCluster(client, systemNamespace, log)
	if err != nil {
		return err
	}
	parts := &attached{kube: kube}
	if parts.images, err = l.cluster.Load().LabImages(); err != nil {
		return err
	}
	hub := notebooks.NewHub(notebooks.HubConfig{Address: kube.HubAddress, Token: l.hub.ServiceToken})
	if parts.tenancy, err = l.newTenancy(client); err != nil {
		return err
	}
	plugins := deviceplugin.New(deviceplugin.Config{Log: log})
	if parts.lending, err = newLending(ctx, l.store, plugins, l.fleet, l.cfg.GPUSharing); err != nil {
		return err
	}
	holders, err := podresources.New(podresources.DefaultSocket, podIndex{kube})
	if err != nil {
		return err
	}
	parts.monitor = gpu.NewMonitor(gpu.MonitorConfig{
		Node: l.id.NodeName, ProbePath: filepath.Join(rt.Dir, "gpulab-probe"), Library: l.nvml(),
		Pods: podIndex{kube}, Holders: holders, Publish: parts.lending.publish,
		LogFile: filepath.Join(l.cfg.DataDir, "log", "probe.log"), PIDFile: filepath.Join(l.cfg.DataDir, "probe.pid"),
	})
	parts.memory = l.newMemoryLimiter(rt)
	parts.proxy, err = notebooks.NewProxy(notebooks.ProxyConfig{
		Sessions: l, Pods: kube, AuthToken: l.hub.ProxyToken,
		HTTPSPort: l.cfg.HTTPSPort, HubPort: l.cfg.HubPort, OtherPort: l.cfg.OtherPorts(),
		Origins: l.origins, Labels: l.labels, Notices: l.notices, Keep: l.keepIdle, AllowedHost: l.allowedHost,
		RoutesFile: filepath.Join(l.cfg.DataDir, "hub-routes.json"), Log: log,
	})
	if err != nil {
		return err
	}
	l.people.OnSessionsEnded(parts.proxy.EndSessions)
	access, err := l.cluster.Load().RESTConfig()
	if err != nil {
		return err
	}
	if parts.line, err = newLine(access); err != nil {
		return err
	}
	parts.notebooks, err = notebooks.New(notebooks.Config{
		Doors: l.cfg.ServicePorts.List(), DoorFree: portFree, Origins: l.origins,
		DB: l.store.DB(), People: l.people, Tenancy: parts.tenancy, Servers: hub, Cluster: kube, Routes: parts.proxy,
		Line: parts.line, HalfLife: l.cfg.Queue.HalfLife.Value, Sampling: l.cfg.Queue.Sampling.Value,
		Shares: l.cfg.Queue.Shares, Log: log, Simulated: l.cfg.GPUs == config.GPUsSimulated,
		Devices: l.devices, Profiles: l.cfg.LaunchProfiles(), SharedGPUs: l.cfg.GPUSharing > 1,
		StartsAtOnce: max(4, 2*runtime.NumCPU()),
		Head:         l.id.NodeName, Booted: booted(),
		Hold: l.holdLaunches, Closed: l.disk.Refusal, Unfit: l.unfit, Learn: l.learnNeeds, MemoryKills: l.memoryKills,
		Quota: l.checkQuota, QuotaLater: quota.MayFitLater,
		Options: l.launchOptions(parts.tenancy), OnlyOn: func(string) string {
			return l.stayHome()
		}, Lacking: l.lacking, Getting: l.getting, CordonReason: l.cordons.reason, Called: l.called, Placing: l.placing.now,
		Barred: l.barred, ForWhom: l.forWhom, Limited: l.limited,
		Home: l.storage.Home, JobImage: func() string {
			return l.images.Refs()["notebook"]
		}, JobEnv: l.cfg.Network.ProxyEnv(l.id), TimeZone: l.cfg.TimeZone.Name, ImageEnv: l.imageEnv,
		ScratchSize: l.cfg.Storage.Scratch.Value, Environment: l.jobEnvironment, EnvironmentsMount: environments.MountPath,
		LackingEnvironment: l.lackingEnvironment, UnfitForEnvironment: l.unfitForEnvironment,
		MailTrouble: l.noJobMail,
		Note: func(launch int64) string {
			return l.idle.Note(launch)
		}, EndsBy: l.endsBy, Preemption: notebooks.Preemption(l.cfg.Queue.Preemption),
		MinimumRun: l.cfg.Queue.MinimumRun.Value, Preempted: l.auditPreempted,
	})
	if err != nil {
		return err
	}
	parts.proxy.SetServices(parts.notebooks, kube)
	if l.idle, err = l.newIdle(parts, hub); err != nil {
		return err
	}
	if parts.environments, err = l.newEnvironments(ctx, client, kube); err != nil {
		return err
	}
	parts.people = &people{Service: l.people, notebooks: parts.notebooks, places: parts.tenancy, now: time.Now}
	l.people.SuspendWith(parts.people.Suspend)
	l.attached.Store(parts)
	if err := l.openPages(ctx, g, parts); err != nil {
		return err
	}
	g.Go(func() error { return l.keepPlace(ctx) })
	g.Go(func() error { return kube.Run(ctx) })
	g.Go(func() error {
		// Before it knows the pods, the proxy would call every notebook away.
		if kube.WaitSynced(ctx) {
			l.labs.set(parts.proxy)
			open := serviceDoors{services: parts.notebooks, proxy: parts.proxy, lab: l}
			return open.run(ctx)
		}
		return nil
	})
	g.Go(func() error { return parts.proxy.Run(ctx) })
	g.Go(func() error { return parts.line.Run(ctx) })
	g.Go(func() error { return parts.notebooks.Run(ctx) })
	g.Go(func() error { return parts.people.Run(ctx) })
	g.Go(func() error { return l.quotas.Keep(ctx, l) })
	g.Go(func() error { return l.idle.Run(ctx, l.fleet.Subscribe(ctx)) })
	g.Go(func() error { return parts.tenancy.Run(ctx) })
	g.Go(func() error { return l.storage.Run(ctx) })
	g.Go(func() error { return parts.environments.Run(ctx) })
	g.Go(func() error { return l.keepClaims(ctx, parts.tenancy) })
	if l.cfg.GPUs != config.GPUsNone {
		g.Go(func() error { return keepFeatures(ctx, client, l.id.NodeName, l.featuresDir()) })
		g.Go(func() error { return plugins.Run(ctx) })
		g.Go(func() error { return holders.Run(ctx, time.Second) })
		g.Go(func() error { return parts.monitor.Run(ctx) })
		g.Go(func() error { return parts.memory.Run(ctx, parts.monitor.Latest) })
	} else {
		// Nothing reads GPUs, so nothing else would say that there are none.
		l.fleet.Update(gpu.Snapshot{Node: l.id.NodeName, GPUs: []gpu.GPU{}})
	}
	return nil
}

// holdLaunches says why no notebook can start yet.
func (l *appliance) holdLaunches() string {
	if l.canLaunch.Load() {
		return ""
	}
	return "The lab is still preparing the notebooks' software."
}

// nvml is the library the probe opens; "" leaves finding it to the system.
func (l *appliance) nvml() string {
	if l.cfg.GPUs == config.GPUsSimulated {
		return simdriver.Library(l.simRoot())
	}
	return ""
}

// devices names the GPUs a pod holds, as the kubelet has told.
func (l *appliance) devices(podUID string) []string {
	var out []string
	for _, s := range l.fleet.Snapshots() {
		for _, g := range s.GPUs {
			for _, h := range g.Holders {
				if h.UID == podUID {
					out = append(out, g.UUID)
				}
			}
		}
	}
	return out
}

// notices is what a person should know of the GPUs they hold, and of their quota.
func (l *appliance) notices(handle string) []notebooks.Notice {
	var list []notebooks.Notice
	for _, s := range l.fleet.Snapshots() {
		for i := range s.GPUs {
			if text := s.GPUs[i].CrowdedBriefly(handle, notebooks.NoticeLength); text != "" && s.Error == "" {
				list = append(list, notebooks.Notice{Key: "memory " + s.GPUs[i].UUID, Text: text})
			}
		}
	}
	for _, text := range l.emptying(handle) {
		list = append(list, notebooks.Notice{Key: "machine " + text, Text: text})
	}
	if u, err := l.people.ByHandle(context.Background(), handle); err == nil {
		if text, err := l.quotas.Notice(context.Background(), u.ID); err == nil && text != "" {
			list = append(list, notebooks.Notice{Key: "quota " + text, Text: text})
		}
		list = append(list, l.idleNotices(u.ID)...)
		if state, err := l.storage.HomeState(context.Background(), u); err == nil {
			if text, err := l.storage.HomeNotice(context.Background(), u.ID, state); err == nil && text != "" {
				list = append(list, notebooks.Notice{Key: "home", Text: text})
			}
		}
	}
	return list
}

// booted is when this machine was started; zero where that cannot be told.
func booted() time.Time {
	at, err := hoststat.Booted()
	if err != nil {
		slog.Warn("what a restart of the machine interrupts is told as something else", "err", err)
	}
	return at
}

// podIndex finds notebooks' pods for the GPU monitor.
type podIndex struct{ kube *notebooks.KubeCluster }

func podRef(p notebooks.PodInfo) gpu.PodRef {
	return gpu.PodRef{UID: p.UID, Namespace: p.Namespace, Name: p.Name, User: p.Handle, Notebook: p.Server}
}

// ByUID implements gpu.Pods.
func (x podIndex) ByUID(uid string) (gpu.PodRef, bool) {
	for _, p := range x.kube.Notebooks() {
		if p.UID == uid {
			return podRef(p), true
		}
	}
	return gpu.PodRef{}, false
}

// ByName implements gpu.Pods.
func (x podIndex) ByName(namespace, name string) (gpu.PodRef, time.Time, bool) {
	for _, p := range x.kube.Notebooks() {
		if p.Namespace == namespace && p.Name == name {
			return podRef(p), p.Started, true
		}
	}
	return gpu.PodRef{}, time.Time{}, false
}

// apiProviders are the outside identity providers, as programs hear of them.
func (l *appliance) apiProviders() []api.Provider {
	var list []api.Provider
	for _, p := range l.signin.Providers() {
		list = append(list, api.Provider{Name: p.Name, Title: p.Title, Directory: p.Directory})
	}
	return list
}

// routes are all that answers on the port of the pages, under the lab's own names alone.
func (l *appliance) routes(below map[string]http.Handler) (http.Handler, error) {
	mux := http.NewServeMux()
	for path, handler := range below {
		mux.Handle(path, handler)
	}
	if err := l.metricsRoutes(mux); err != nil {
		return nil, err
	}
	return l.byName(mux), nil
}

// openPages puts the real pages in the place of the "starting" page.
func (l *appliance) openPages(ctx context.Context, g *errgroup.Group, parts *attached) error {
	lend := func(ctx context.Context, uuid string, anyway bool) error {
		_, err := l.lend(ctx, uuid, anyway)
		return err
	}
	description, err := api.Description()
	if err != nil {
		return fmt.Errorf("describe the API: %w", err)
	}
	pages, err := webui.New(webui.Config{
		Users: parts.people, Audit: l.people.AuditLog(), Notebooks: parts.notebooks, Fleet: l.fleet, Status: l,
		Mail: l.mail, History: l.history, Quotas: l.quotas, Storage: l.storage, Idle: l.idle, Report: l.Report,
		CheckGPU: l.tryGPU, LendGPU: lend, GPULabels: parts.kube.GPULabels, Machines: machines{l},
		Environments: labEnvironments{l},
		SignIn:       l.signin, Network: l.networkWay(), SeenBy: parts.proxy.SeenBy, Tailnet: tailnets{l},
		Backup: l.backupWords, QuotaAdvice: l.quotaAdvice, DiskNotice: l.diskNotice, Machine: l.machineNotes,
		Emptying: l.emptying, Barred: l.barred, Elsewhere: l.elsewhere,
		Scratch: units.Bytes(uint64(l.cfg.Storage.Scratch.Bytes())),
		CA:      l.certs.CAPEM, LabName: l.cfg.Lab, Version: version.Version, SignUp: l.cfg.SignUp == config.SignUpApproval,
		Files: l.fileDoor(), API: description,
		HTTPSPort: l.cfg.HTTPSPort, HubPort: l.cfg.HubPort, NotebooksAt: l.origins.Authority, Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	provider, err := oidc.New(oidc.Config{
		ClientID: l.hub.OIDCClientID, ClientSecret: l.hub.OIDCClientSecret,
		KeyFile: filepath.Join(l.cfg.DataDir, "oidc-key.pem"), Owner: l.origins.OwnerAt,
		Session: l.sessionUser, User: l.people.ByID, LoginURL: "/login", AllowedHost: l.allowedHost, Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	programs, err := api.New(api.Config{
		Users: parts.people, Audit: l.people.AuditLog(), Notebooks: parts.notebooks, Mail: l.mail, History: l.history,
		Quotas:  l.quotas,
		Storage: l.storage, Idle: l.idle, Snapshots: l.fleet.Snapshots, Status: l.Status,
		MayLaunch: func(ctx context.Context, u users.User, p notebooks.Profile) error { return l.checkQuota(ctx, u, p, 0) },
		Report:    l.Report, CheckGPU: l.tryGPU, LendGPU: lend, Machines: machines{l}, Environments: labEnvironments{l},
		Tailnet: tailnets{l}, Barred: l.barred, Files: l.apiFileDoor(), Providers: l.apiProviders(), LabName: l.cfg.Lab,
		HubPort: l.cfg.HubPort, NotebooksAt: l.origins.Authority, Log: slog.Default(),
	})
	if err != nil {
		return err
	}
	addresses := parts.proxy.KeepPort(parts.proxy)
	all, err := l.routes(map[string]http.Handler{
		api.Prefix + "/": programs, "/oidc/": provider, "/hub-proxy/": parts.proxy.RoutesAPI(),
		"/user/": addresses, "/service/": addresses, notebooks.EnterPath: addresses, "/": parts.proxy.KeepPort(pages),
	})
	if err != nil {
		return err
	}
	l.pages.set(all)
	g.Go(func() error { return pages.Run(ctx) })
	return nil
}
