//! The flows of the Rust SDK. What its release lacks is listed in `sdk.py`; all consumers are simple ones.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionChecker, TransactionResolution};
use rocketmq::Producer;

use crate::run::{explain, unix_time, Outcome, Run, Subscription, AWAIT, SENDERS};

const MESSAGE_GROUPS: usize = 16;
/// The invisible time of messages that are never acknowledged; the shortest one that proxies allow.
const ABANDONED: Duration = Duration::from_secs(10);
/// The time without a delivery after which messages that always fail are given up.
const SETTLED: Duration = Duration::from_secs(25);
/// How often a message is delivered before it goes to the dead letters; the groups allow two retries.
const DELIVERIES: usize = 3;

/// Perform the flow of a run, and return a note about it.
pub async fn perform(run: &Run) -> Outcome<String> {
    match run.flow.as_str() {
        "normal" => normal(run).await,
        "tag" => filtered(run, FilterExpression::new(FilterType::Tag, "red")).await,
        "sql" => filtered(run, FilterExpression::new(FilterType::Sql, "price > 5")).await,
        "fifo" => fifo(run).await,
        "delay" => delay(run).await,
        "transaction" => transaction(run).await,
        "dead-letters" => dead_letters(run, "normal").await,
        "fifo-dead-letters" => dead_letters(run, "fifo").await,
        unknown => Err(format!("unknown flow {unknown}")),
    }
}

fn everything() -> FilterExpression {
    FilterExpression::new(FilterType::Tag, "*")
}

async fn send(producer: &Producer, message: MessageBuilder) -> Outcome<()> {
    producer.send(message.build().map_err(explain)?).await.map_err(explain)?;
    Ok(())
}

async fn normal(run: &Run) -> Outcome<String> {
    let consumer = run.consumer("normal", everything()).await?;
    let producer = run.producer("normal", None).await?;
    run.found.borrow_mut().check = Some(Box::new(|view: &MessageView| {
        let expected = format!("key-{}", view.properties()["number"]);
        (view.keys() != [expected]).then(|| format!("the keys of {} are {:?}", view.message_id(), view.keys()))
    }));
    run.send_all(SENDERS, |index| {
        let message = run.message("normal", index, true, &[]).set_tag("a").set_keys(vec![format!("key-{index}")]);
        send(&producer, message)
    })
    .await?;
    run.receive_all(&consumer, run.patience()).await?;
    producer.shutdown().await.map_err(explain)?;
    consumer.shutdown().await?;
    Ok(String::new())
}

/// Subscribe to a part of the messages, and wait whether others arrive, too.
async fn filtered(run: &Run, filter: FilterExpression) -> Outcome<String> {
    let consumer = run.consumer("normal", filter).await?;
    let producer = run.producer("normal", None).await?;
    run.send_all(SENDERS, |index| {
        let is_wanted = if run.flow == "tag" { index % 3 == 0 } else { index % 10 > 5 };
        let price = [("price", (index % 10).to_string())];
        let message = run.message("normal", index, is_wanted, &price).set_tag(["red", "green", "blue"][index % 3]);
        send(&producer, message)
    })
    .await?;
    run.receive_all(&consumer, run.patience()).await?;
    run.receive_more(&consumer, AWAIT).await?;
    producer.shutdown().await.map_err(explain)?;
    consumer.shutdown().await?;
    Ok(String::new())
}

/// Check that the messages of each message group arrive in the order in which they were sent.
async fn fifo(run: &Run) -> Outcome<String> {
    let consumer = run.consumer("fifo", everything()).await?;
    let producer = run.producer("fifo", None).await?;
    let mut last: HashMap<String, usize> = HashMap::new();
    run.found.borrow_mut().check = Some(Box::new(move |view: &MessageView| {
        let group = view.message_group().unwrap_or_default().to_string();
        let number = view.properties()["number"].parse().unwrap_or_default();
        let before = last.insert(group.clone(), number).unwrap_or_default();
        (number < before).then(|| format!("{number} after {before} in {group}"))
    }));
    run.send_all(MESSAGE_GROUPS, |index| send(&producer, in_group(run.message("fifo", index, true, &[]), index)))
        .await?;
    run.receive_with(&consumer, 1, run.patience()).await?;
    producer.shutdown().await.map_err(explain)?;
    consumer.shutdown().await?;
    Ok("in order".into())
}

fn in_group(message: MessageBuilder, index: usize) -> MessageBuilder {
    message.set_message_group(format!("group-{}", index % MESSAGE_GROUPS))
}

/// Send messages for a later second, since this SDK has delivery times in seconds.
async fn delay(run: &Run) -> Outcome<String> {
    let consumer = run.consumer("delay", everything()).await?;
    let producer = run.producer("delay", None).await?;
    run.found.borrow_mut().check = Some(Box::new(|view: &MessageView| {
        let due = Duration::from_secs(view.properties()["due"].parse().unwrap_or_default());
        (unix_time() < due).then(|| format!("early by {:?}", due.saturating_sub(unix_time())))
    }));
    run.send_all(SENDERS, |index| {
        let due = unix_time().as_secs() as i64 + 3 + index as i64 % 3;
        let message = run.message("delay", index, true, &[("due", due.to_string())]);
        send(&producer, message.set_delivery_timestamp(due))
    })
    .await?;
    run.receive_all(&consumer, run.patience()).await?;
    producer.shutdown().await.map_err(explain)?;
    consumer.shutdown().await?;
    Ok("none early".into())
}

/// Commit every other message; the outcome of a fifth of them is left to the checker.
async fn transaction(run: &Run) -> Outcome<String> {
    let checks = Arc::new(AtomicUsize::new(0));
    let counted = checks.clone();
    let checker: Box<TransactionChecker> = Box::new(move |_, view| {
        counted.fetch_add(1, Ordering::Relaxed);
        match view.properties()["number"].parse().unwrap_or(1) % 2 {
            0 => TransactionResolution::COMMIT,
            _ => TransactionResolution::ROLLBACK,
        }
    });
    let consumer = run.consumer("transaction", everything()).await?;
    let producer = run.producer("transaction", Some(checker)).await?;
    run.send_all(SENDERS, |index| {
        let message = run.message("transaction", index, index % 2 == 0, &[]).enable_transaction();
        send_in_transaction(&producer, message.build(), index)
    })
    .await?;
    run.receive_all(&consumer, 2 * run.patience()).await?;
    let checks = checks.load(Ordering::Relaxed);
    if run.count > 8 && checks == 0 {
        run.found.borrow_mut().complain("no transaction was checked");
    }
    producer.shutdown().await.map_err(explain)?;
    consumer.shutdown().await?;
    Ok(format!("{checks} checks"))
}

async fn send_in_transaction(
    producer: &Producer,
    message: Result<impl Message, rocketmq::error::ClientError>,
    index: usize,
) -> Outcome<()> {
    let opened = producer.send_transaction_message(message.map_err(explain)?).await.map_err(explain)?;
    match index % 10 {
        8 | 9 => Ok(()),
        even if even % 2 == 0 => opened.commit().await.map_err(explain),
        _ => opened.rollback().await.map_err(explain),
    }
}

/// Never acknowledge a message until it is given up; the harness reads the dead letters afterwards.
async fn dead_letters(run: &Run, kind: &str) -> Outcome<String> {
    let consumer = run.consumer(kind, FilterExpression::new(FilterType::Tag, run.flow.as_str())).await?;
    let producer = run.producer(kind, None).await?;
    run.send_all(MESSAGE_GROUPS, |index| {
        let message = run.message(kind, index, true, &[]).set_tag(run.flow.as_str());
        send(&producer, if kind == "fifo" { in_group(message, index) } else { message })
    })
    .await?;
    fail_all(run, &consumer).await?;
    producer.shutdown().await.map_err(explain)?;
    consumer.shutdown().await?;
    Ok(format!("{DELIVERIES} deliveries each"))
}

/// Receive without an acknowledgement until no message comes back any more.
async fn fail_all(run: &Run, consumer: &Subscription<'_>) -> Outcome<()> {
    let mut attempts: HashMap<String, usize> = HashMap::new();
    let (mut newest, deadline) = (Instant::now(), Instant::now() + run.patience());
    while newest.elapsed() < SETTLED && Instant::now() < deadline {
        for view in consumer.receive(ABANDONED).await? {
            let mut found = run.found.borrow_mut();
            if !found.is_own(&view) {
                continue;
            }
            newest = Instant::now();
            let attempt = attempts.entry(view.properties()["sha"].clone()).or_default();
            *attempt += 1;
            match *attempt {
                DELIVERIES => found.add(&view),
                more if more > DELIVERIES => found.complain(format!("delivery {more}")),
                _ => (),
            }
        }
    }
    Ok(())
}
