//! One flow: its names, the helpers that send and receive, and the tally that judges.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::future::Future;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures::future::try_join_all;
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::error::ClientError;
use rocketmq::model::common::FilterExpression;
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::TransactionChecker;
use rocketmq::{Producer, SimpleConsumer};
use sha2::{Digest, Sha256};
use tokio::time::sleep;

pub const AWAIT: Duration = Duration::from_secs(6);
pub const SENDERS: usize = 16;
const INVISIBLE: Duration = Duration::from_secs(60);
const REQUEST: Duration = Duration::from_secs(10);
const BATCH: i32 = 32;
const RECEIVERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(90);
const RETRY: Duration = Duration::from_millis(500);
/// The number of messages a second that a run may at least expect of a busy machine.
const SLOWEST: usize = 40;

/// An error of the SDK, as text.
pub type Outcome<T> = Result<T, String>;

pub fn explain(error: ClientError) -> String {
    error.to_string()
}

pub struct Run {
    endpoints: String,
    suffix: String,
    pub flow: String,
    pub count: usize,
    id: String,
    /// How many receives ended at their deadline instead of with an answer.
    timeouts: Cell<usize>,
    pub found: RefCell<Tally>,
}

impl Run {
    pub fn new(endpoints: &str, suffix: &str, flow: &str, count: usize) -> Run {
        let id = format!("{}-{}", std::process::id(), unix_time().as_nanos());
        let found = RefCell::new(Tally { id: id.clone(), ..Tally::default() });
        Run {
            endpoints: endpoints.into(),
            suffix: suffix.into(),
            flow: flow.into(),
            count,
            id,
            timeouts: Cell::new(0),
            found,
        }
    }

    pub fn patience(&self) -> Duration {
        PATIENCE + Duration::from_secs((self.count / SLOWEST) as u64)
    }

    pub fn topic(&self, kind: &str) -> String {
        format!("sdk-{kind}{}", self.suffix)
    }

    fn client_option(&self) -> ClientOption {
        let mut option = ClientOption::default();
        option.set_access_url(self.endpoints.clone());
        option.set_enable_tls(false);
        option.set_timeout(REQUEST);
        option.set_long_polling_timeout(AWAIT);
        option
    }

    pub async fn producer(&self, kind: &str, checker: Option<Box<TransactionChecker>>) -> Outcome<Producer> {
        let mut option = ProducerOption::default();
        option.set_topics(vec![self.topic(kind)]);
        let mut producer = match checker {
            Some(checker) => Producer::new_transaction_producer(option, self.client_option(), checker),
            None => Producer::new(option, self.client_option()),
        }
        .map_err(explain)?;
        producer.start().await.map_err(explain)?;
        Ok(producer)
    }

    /// Start a simple consumer, and receive once: a group is known to a queue from its first receive on.
    pub async fn consumer(&self, kind: &str, filter: FilterExpression) -> Outcome<Subscription<'_>> {
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(format!("sdk-{}{}", self.flow, self.suffix));
        option.set_topics(vec![self.topic(kind)]);
        let mut consumer = SimpleConsumer::new(option, self.client_option()).map_err(explain)?;
        consumer.start().await.map_err(explain)?;
        let subscription = Subscription { consumer, topic: self.topic(kind), filter, timeouts: &self.timeouts };
        subscription.receive_first().await?;
        Ok(subscription)
    }

    /// Return a body, and properties that contain its digest and the id of this flow.
    pub fn content(&self, index: usize) -> (Vec<u8>, HashMap<String, String>) {
        let text = format!("{} {index} {} {} ", self.flow, self.id, unix_time().as_nanos());
        let body = text.repeat(1 + index % 16).into_bytes();
        let properties = [("sha", digest(&body)), ("run", self.id.clone()), ("number", index.to_string())];
        (body, properties.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }

    pub fn want(&self, properties: &HashMap<String, String>) {
        self.found.borrow_mut().wanted.insert(properties["sha"].clone());
    }

    /// Return the builder of a message of this flow.
    pub fn message(&self, kind: &str, index: usize, wanted: bool, more: &[(&str, String)]) -> MessageBuilder {
        let (body, mut properties) = self.content(index);
        if wanted {
            self.want(&properties);
        }
        properties.extend(more.iter().map(|(name, value)| (name.to_string(), value.clone())));
        MessageBuilder::builder().set_topic(self.topic(kind)).set_body(body).set_properties(properties)
    }

    /// Call `send` for each number below the count. Numbers of one lane are sent in order, one after the other.
    pub async fn send_all<F, S>(&self, lanes: usize, send: F) -> Outcome<()>
    where
        F: Fn(usize) -> S,
        S: Future<Output = Outcome<()>>,
    {
        let send = &send;
        let lane = |lane: usize| async move {
            for index in (lane..self.count).step_by(lanes) {
                send(index).await.map_err(|error| format!("message {index}: {error}"))?;
            }
            Ok::<(), String>(())
        };
        try_join_all((0..lanes).map(lane)).await?;
        Ok(())
    }

    /// Receive and acknowledge until every wanted message has arrived, or the time is over.
    pub async fn receive_all(&self, from: &Subscription<'_>, patience: Duration) -> Outcome<()> {
        self.receive_with(from, RECEIVERS, patience).await
    }

    pub async fn receive_with(&self, from: &Subscription<'_>, receivers: usize, patience: Duration) -> Outcome<()> {
        let deadline = Instant::now() + patience;
        let receiver = |_| async move {
            while !self.found.borrow().is_complete() && Instant::now() < deadline {
                from.receive_and_ack(|view| self.found.borrow_mut().add(view)).await?;
            }
            Ok::<(), String>(())
        };
        try_join_all((0..receivers).map(receiver)).await?;
        Ok(())
    }

    /// Receive for some time after the last wanted message, so that an unwanted one is noticed.
    pub async fn receive_more(&self, from: &Subscription<'_>, longer: Duration) -> Outcome<()> {
        let deadline = Instant::now() + longer;
        while Instant::now() < deadline {
            from.receive_and_ack(|view| self.found.borrow_mut().add(view)).await?;
        }
        Ok(())
    }

    /// Print the verdict: every wanted message arrived, no other one, and nothing was wrong.
    pub fn print_verdict(&self, outcome: Outcome<String>) -> bool {
        let found = self.found.borrow();
        let is_exact = found.is_complete() && found.copies.len() == found.wanted.len();
        let is_ok = is_exact && found.wrong.is_empty() && outcome.is_ok();
        let mut note = outcome.unwrap_or_else(|error| error);
        if self.timeouts.get() > 0 {
            let note_before = if note.is_empty() { note } else { format!("{note}; ") };
            note = format!("{note_before}{} receives ended at their deadline", self.timeouts.get());
        }
        if let Some(first) = found.wrong.first() {
            note = format!("{note}; {} wrong, the first: {first}", found.wrong.len());
        }
        let (expected, received) = (found.wanted.len(), found.copies.len());
        let copies: usize = found.copies.values().sum();
        let (flow, note) = (&self.flow, note.replace(|one: char| one.is_control() || "\"\\".contains(one), "'"));
        println!(
            "{{\"flow\": \"{flow}\", \"ok\": {is_ok}, \"expected\": {expected}, \"received\": {received}, \
             \"copies\": {copies}, \"note\": \"{note}\"}}"
        );
        is_ok
    }
}

/// A simple consumer with its topic and its filter, which this SDK takes at each receive.
pub struct Subscription<'a> {
    consumer: SimpleConsumer,
    topic: String,
    filter: FilterExpression,
    timeouts: &'a Cell<usize>,
}

impl Subscription<'_> {
    /// Return the next messages. RocketMQ's proxy waits for one until the deadline of the SDK, which then fails the call.
    pub async fn receive(&self, invisible: Duration) -> Outcome<Vec<MessageView>> {
        match self.consumer.receive_with(&self.topic, &self.filter, BATCH, invisible).await.map_err(explain) {
            Err(error) if error.contains("status: Cancelled") => {
                self.timeouts.set(self.timeouts.get() + 1);
                Ok(Vec::new())
            }
            outcome => outcome,
        }
    }

    /// Receive until a call succeeds: RocketMQ's proxy fails receives that overtake the settings of the client.
    async fn receive_first(&self) -> Outcome<()> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.receive_and_ack(|_| ()).await {
                Err(_) if Instant::now() < deadline => sleep(RETRY).await,
                outcome => return outcome,
            }
        }
    }

    async fn receive_and_ack(&self, handle: impl Fn(&MessageView)) -> Outcome<()> {
        for view in self.receive(INVISIBLE).await? {
            handle(&view);
            self.consumer.ack(&view).await.map_err(explain)?;
        }
        Ok(())
    }

    pub async fn shutdown(self) -> Outcome<()> {
        self.consumer.shutdown().await.map_err(explain)
    }
}

/// Looks for further faults of a message of this flow.
pub type Check = Box<dyn FnMut(&MessageView) -> Option<String>>;

/// Counts what arrived of one flow, and what was wrong with it.
#[derive(Default)]
pub struct Tally {
    id: String,
    wanted: HashSet<String>,
    copies: HashMap<String, usize>,
    arrived: usize,
    pub wrong: Vec<String>,
    pub check: Option<Check>,
}

impl Tally {
    /// Return whether a message is of this flow; an altered one is noted.
    pub fn is_own(&mut self, view: &MessageView) -> bool {
        if view.properties().get("run") != Some(&self.id) {
            return false;
        }
        if view.properties().get("sha") != Some(&digest(view.body())) {
            self.complain(format!("the body of {} changed", view.message_id()));
        }
        true
    }

    pub fn add(&mut self, view: &MessageView) {
        if !self.is_own(view) {
            return;
        }
        if let Some(fault) = self.check.as_mut().and_then(|check| check(view)) {
            self.complain(fault);
        }
        let key = view.properties()["sha"].clone();
        let is_wanted = self.wanted.contains(&key);
        let copies = self.copies.entry(key).or_default();
        *copies += 1;
        self.arrived += usize::from(*copies == 1 && is_wanted);
    }

    pub fn complain(&mut self, fault: impl Display) {
        self.wrong.push(fault.to_string());
    }

    /// Return whether every wanted message has arrived; all of them are sent before anything is received.
    pub fn is_complete(&self) -> bool {
        self.arrived == self.wanted.len()
    }
}

pub fn unix_time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn digest(body: &[u8]) -> String {
    Sha256::digest(body).iter().map(|byte| format!("{byte:02x}")).collect()
}
