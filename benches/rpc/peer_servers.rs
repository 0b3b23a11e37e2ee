//! The compared servers, all running at once. Starling and op-geth import one chain over their
//! Engine APIs; anvil seals the same blocks.

use crate::{
    CORES, Node,
    anvil::AnvilL2,
    chain_maker,
    feeder::Feeder,
    peer_chain::PeerChain,
    pin,
    programs::{Started, op_geth},
    rate::ServerUnderLoad,
};
use std::{net::SocketAddr, path::Path};

/// The JWT secret of op-geth: 32 bytes in hex.
const SECRET: &str = "0707070707070707070707070707070707070707070707070707070707070707";

/// The least performance of Starling compared with another server.
pub struct PeerBar {
    /// Starling's rate as a multiple of the other server's rate.
    pub rate: f64,
    /// Whether Starling's p99 must be at most the other server's p99.
    pub is_p99_compared: bool,
}

pub struct PeerServer {
    pub name: &'static str,
    pub server: ServerUnderLoad,
    pub bar: PeerBar,
}

/// The running servers; programs that are not installed are left out.
pub struct PeerServers {
    ours: Node,
    anvil: Option<AnvilL2>,
    op_geth: Option<Started>,
}

impl PeerServers {
    pub fn start(folder: &Path, chain: &PeerChain) -> Self {
        let payloads = || chain.blocks.iter().map(|block| &**block);
        let datadir = chain_maker::init(folder, "ours", &chain.genesis);
        // Starling queues log queries of many connections, so disable its timeout; the other
        // servers have no limit.
        let ours = Node::start(&datadir, &["--rpc.evmtimeout=0"]);
        ours.feeder().import_all(payloads());

        let anvil = AnvilL2::start(
            &datadir.with_extension("json"),
            chain.chain_id,
            folder.join("anvil.log"),
            &[],
        );
        if let Some(anvil) = &anvil {
            pin(CORES[0], anvil.pid());
            for block in payloads() {
                anvil.seal(&block.header, &block.transactions);
            }
        }

        let op_geth = starling_testkit::program("STARLING_OP_GETH").map(|program| {
            let file = |name: &str| folder.join(name);
            std::fs::write(file("l2-genesis.json"), chain.genesis.to_string()).expect("a file");
            std::fs::write(file("jwt"), SECRET).expect("a file");
            let full = ["--gcmode=full".to_owned()];
            let started = op_geth(folder, &program, "op-geth", &full);
            pin(CORES[0], started.pid());
            let engine = started.engine.expect("an Engine API");
            let engine = SocketAddr::from(([127, 0, 0, 1], engine));
            Feeder::connect(engine, &file("jwt")).import_all(payloads());
            started
        });
        Self {
            ours,
            anvil,
            op_geth,
        }
    }

    pub fn ours(&self) -> ServerUnderLoad {
        self.ours.under_load()
    }

    pub fn others(&self) -> Vec<PeerServer> {
        let anvil = self.anvil.as_ref().map(|anvil| PeerServer {
            name: "anvil",
            server: server(&anvil.url, anvil.pid()),
            bar: PeerBar {
                rate: 1.0,
                is_p99_compared: true,
            },
        });
        let op_geth = self.op_geth.as_ref().map(|op_geth| PeerServer {
            name: "op-geth",
            server: server(&op_geth.url, op_geth.pid()),
            bar: PeerBar {
                rate: 3.0,
                is_p99_compared: false,
            },
        });
        anvil.into_iter().chain(op_geth).collect()
    }
}

fn server(url: &str, pid: u32) -> ServerUnderLoad {
    let http = url.trim_start_matches("http://").parse();
    ServerUnderLoad {
        http: http.expect("an address"),
        pid,
    }
}
