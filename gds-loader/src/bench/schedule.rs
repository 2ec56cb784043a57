//! In which order the cases of each round are run.

use super::Asked;

/// The order of each round: every case once. `caches` says what each case asks of the page cache, `None` where it does not matter.
///
/// Each round is shuffled by itself, so that no case always follows the same one and a drift of the machine hits all of them alike.
/// Within a round those that want cold files come together, and so do those that want warm ones, because warming the files for each
/// would cost more time than the measurements; which group comes first is shuffled too. The seed makes a run repeatable.
pub fn schedule(caches: &[Option<Asked>], rounds: usize, seed: u64) -> Vec<Vec<usize>> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..rounds)
        .map(|_| {
            let mut order: Vec<usize> = (0..caches.len()).collect();
            random.shuffle(&mut order);
            let first = if random.bool() { Asked::Cold } else { Asked::Warm };
            // A stable sort: within a group the order stays as shuffled.
            order.sort_by_cached_key(|case| match caches[*case] {
                Some(asked) => asked != first,
                None => random.bool(),
            });
            order
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASKED: [Option<Asked>; 3] = [Some(Asked::Cold), Some(Asked::Warm), None];

    proptest! {
        #[test]
        fn every_round_has_every_case_once_and_changes_the_cache_once(
            caches in prop::collection::vec(prop::sample::select(&ASKED[..]), 0..12),
            rounds in 0_usize..8,
            seed: u64,
        ) {
            let order = schedule(&caches, rounds, seed);
            prop_assert_eq!(order.len(), rounds);
            for round in &order {
                let mut sorted = round.clone();
                sorted.sort_unstable();
                prop_assert_eq!(sorted, (0..caches.len()).collect::<Vec<_>>());
                let asked: Vec<Asked> = round.iter().filter_map(|case| caches[*case]).collect();
                prop_assert!(asked.windows(2).filter(|pair| pair[0] != pair[1]).count() <= 1);
            }
            prop_assert_eq!(schedule(&caches, rounds, seed), order);
        }
    }

    #[test]
    fn rounds_differ() {
        let rounds = schedule(&[Some(Asked::Cold); 6], 20, 1);
        let first: Vec<usize> = rounds.iter().map(|round| round[0]).collect();
        assert!((0..6).all(|case| first.contains(&case)), "{first:?}");
        assert!(rounds.windows(2).any(|pair| pair[0] != pair[1]));
    }
}
