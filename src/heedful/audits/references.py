"""The literature that the questions of an audit rest on: one list, whose keys the questions name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A publication.

    Args:
        where: venue, without the year; empty if it is on arXiv only as far as known.
        arxiv: its number on arXiv; empty if it has none.
        point: what the audit takes from it, in one sentence.
    """

    authors: str
    year: int
    title: str
    where: str
    arxiv: str
    point: str


REFERENCES: Mapping[str, Reference] = {
    "adebayo-2018": Reference(
        "Julius Adebayo, Justin Gilmer, Michael Muelly, Ian Goodfellow, Moritz Hardt, Been Kim",
        2018,
        "Sanity Checks for Saliency Maps",
        "NeurIPS",
        "1810.03292",
        "Some explanations hardly change when the weights of the model are randomized, so they cannot explain it.",
    ),
    "alvarez-melis-2018": Reference(
        "David Alvarez-Melis, Tommi S. Jaakkola",
        2018,
        "On the Robustness of Interpretability Methods",
        "ICML Workshop on Human Interpretability in Machine Learning",
        "1806.08049",
        "Similar inputs should have similar explanations.",
    ),
    "basu-2026": Reference(
        "Abhinaba Basu, Pavan Chakraborty",
        2026,
        "ICE: Intervention-Consistent Explanation Evaluation with Statistical Grounding for LLMs",
        "Findings of EMNLP",
        "2603.18579",
        "Faithfulness depends on how words are removed and must be compared with random explanations by a test.",
    ),
    "deyoung-2020": Reference(
        "Jay DeYoung, Sarthak Jain, Nazneen Fatema Rajani, Eric Lehman, Caiming Xiong, Richard Socher, Byron C. "
        "Wallace",
        2020,
        "ERASER: A Benchmark to Evaluate Rationalized NLP Models",
        "ACL",
        "1911.03429",
        "Defines comprehensiveness and sufficiency, and how scores are compared with words that people marked.",
    ),
    "edin-2025": Reference(
        "Joakim Edin, Andreas Geert Motzfeldt, Casper L. Christensen, Tuukka Ruotsalo, Lars Maaløe, Maria Maistro",
        2025,
        "Normalized AOPC: Fixing Misleading Faithfulness Metrics for Feature Attributions Explainability",
        "ACL",
        "2408.08137",
        "The best and the worst possible score differ between models, so a score means little without them.",
    ),
    "fernandes-2022": Reference(
        "Patrick Fernandes, Marcos Treviso, Danish Pruthi, André F. T. Martins, Graham Neubig",
        2022,
        "Learning to Scaffold: Optimizing Model Explanations for Teaching",
        "NeurIPS",
        "2204.10810",
        "An explanation is good if it helps a student to predict what the model does.",
    ),
    "hase-2021": Reference(
        "Peter Hase, Harry Xie, Mohit Bansal",
        2021,
        "The Out-of-Distribution Problem in Explainability and Search Methods for Feature Importance Explanations",
        "NeurIPS",
        "2106.00786",
        "Texts without some of their words are unlike the training texts; a search finds better explanations than "
        "most methods do.",
    ),
    "hedstrom-2024": Reference(
        "Anna Hedström, Leander Weber, Sebastian Lapuschkin, Marina Höhne",
        2024,
        "A Fresh Look at Sanity Checks for Saliency Maps",
        "",
        "2405.02383",
        "How similar two explanations look depends on noise and on the measure of similarity, not only on the model.",
    ),
    "hsia-2024": Reference(
        "Jennifer Hsia, Danish Pruthi, Aarti Singh, Zachary C. Lipton",
        2024,
        "Goodhart's Law Applies to NLP's Explanation Benchmarks",
        "Findings of EACL",
        "2308.14272",
        "A model can be built to score well on comprehensiveness and sufficiency without better explanations.",
    ),
    "jacovi-2020": Reference(
        "Alon Jacovi, Yoav Goldberg",
        2020,
        "Towards Faithfully Interpretable NLP Systems: How Should We Define and Evaluate Faithfulness?",
        "ACL",
        "2004.03685",
        "Faithful and plausible are different things, and faithfulness is a matter of degree.",
    ),
    "jain-2019": Reference(
        "Sarthak Jain, Byron C. Wallace",
        2019,
        "Attention is not Explanation",
        "NAACL-HLT",
        "1902.10186",
        "Other attention weights often give the same prediction.",
    ),
    "liu-2022": Reference(
        "Yibing Liu, Haoliang Li, Yangyang Guo, Chenqi Kong, Jing Li, Shiqi Wang",
        2022,
        "Rethinking Attention-Model Explainability through Faithfulness Violation Test",
        "ICML",
        "2201.12114",
        "A word with a large attention weight may speak against the prediction.",
    ),
    "neely-2022": Reference(
        "Michael Neely, Stefan F. Schouten, Maurits Bleeker, Ana Lucic",
        2022,
        "A Song of (Dis)agreement: Evaluating the Evaluation of Explainable Artificial Intelligence in Natural "
        "Language Processing",
        "HHAI",
        "2205.04559",
        "Explanation methods agree little with one another, so agreement does not show which of them is right.",
    ),
    "sixt-2020": Reference(
        "Leon Sixt, Maximilian Granz, Tim Landgraf",
        2020,
        "When Explanations Lie: Why Many Modified BP Attributions Fail",
        "ICML",
        "1912.09818",
        "Explanations that ignore the later layers of a model cannot tell its classes apart.",
    ),
    "sundararajan-2017": Reference(
        "Mukund Sundararajan, Ankur Taly, Qiqi Yan",
        2017,
        "Axiomatic Attribution for Deep Networks",
        "ICML",
        "1703.01365",
        "States completeness: scores add up to the difference from the output for a baseline.",
    ),
    "wiegreffe-2019": Reference(
        "Sarah Wiegreffe, Yuval Pinter",
        2019,
        "Attention is not not Explanation",
        "EMNLP-IJCNLP",
        "1908.04626",
        "That other weights exist does not mean that the model would have learned them.",
    ),
    "zhou-2023": Reference(
        "Yilun Zhou, Julie Shah",
        2023,
        "The Solvability of Interpretability Evaluation Metrics",
        "Findings of EACL",
        "2205.08696",
        "The best explanation under a measure can be searched for directly, as is done here for the 100 %.",
    ),
}
"""By the first author and the year, in alphabetical order."""
